import importlib.metadata as metadata, importlib.util as util, json, pkgutil, platform, re, sys, sysconfig

paths = [path for path in sys.path if path and not path.startswith("/workspace")]
modules = set(sys.builtin_module_names) | set(getattr(sys, "stdlib_module_names", ()))
modules.update(module.name for module in pkgutil.iter_modules(paths))
packages = set()
for distribution in metadata.distributions(path=paths):
    name = distribution.metadata["Name"]
    if name:
        packages.add(re.sub(r"[-_.]+", "-", name).lower())
    for entry in distribution.files or ():
        # Namespace packages have no file that iter_modules would find.
        if entry.parts[0].isidentifier() and entry.suffix in (".py", ".so"):
            modules.add(entry.parts[0])
installer = [sys.executable, "-I", "-m", "pip"] if util.find_spec("pip") else []
if not installer and sys.prefix != sys.base_prefix:
    base = getattr(sys, "_base_executable", None)
    import subprocess
    if base and subprocess.run([base, "-I", "-m", "pip", "--version"], capture_output=True).returncode == 0:
        installer = [base, "-I", "-m", "pip", "--python", sys.executable]
libc = "musl" if "musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or "") else "gnu"
print(json.dumps({
    "name": "%s-%d.%d%s" % (sys.implementation.name, *sys.version_info[:2], getattr(sys, "abiflags", "")),
    "version": platform.python_version(),
    "platform": "%s-linux-%s" % (platform.machine(), libc),
    "program": sys.executable,
    "modules": sorted(modules),
    "packages": sorted(packages),
    "installer": installer,
    "paths": paths,
}))
