# Builds the source tree in this folder with a PEP 517 hook. Runs code of the package, without network.
import importlib, json, os, site, sys

hook, packages = sys.argv[1:3]
system = json.load(sys.stdin)
# Redirects the build's own output to stderr, so that stdout only has the answer.
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
os.makedirs("wheel", exist_ok=True)
wheels = os.path.abspath("wheel")
os.chdir("unpacked")
usual = sys.path[:]
site.addsitedir(packages)
own = [os.path.abspath(path) for path in system["backend_path"]]
sys.path[:] = own + [path for path in sys.path if path not in usual] + usual
os.environ["PYTHONPATH"] = os.pathsep.join(own + [packages])
os.environ["PATH"] = os.path.join(packages, "bin") + os.pathsep + os.environ.get("PATH", os.defpath)
sys.argv = ["setup.py"]
module, _, path = system["backend"].partition(":")
backend = importlib.import_module(module)
for name in filter(None, path.split(".")):
    backend = getattr(backend, name)
if hook == "requires":
    requires = getattr(backend, "get_requires_for_build_wheel", lambda: [])()
    answer.write(json.dumps(list(requires)))
else:
    backend.build_wheel(wheels)
answer.flush()
