"""Creates unpublished packages, and an index of each kind to serve them: make_packages.py FOLDER ADDRESS HOME"""
import base64, hashlib, io, json, os, sys, tarfile

HERE = os.path.dirname(os.path.abspath(__file__))
OUT, ADDRESS, HOME = sys.argv[1:]
PORT = int(ADDRESS.rpartition(":")[2])
# Builds a wheel without any dependencies; `module` is its content.
BACKEND = '''
import os, zipfile
if __name__ == "backend": import bell_tool
NAME, VERSION, NEEDS = %r, %r, %r

def build_wheel(folder, settings=None, metadata=None):
    info = "%%s-%%s.dist-info/" %% (NAME, VERSION)
    about = "Metadata-Version: 2.1\\nName: %%s\\nVersion: %%s\\n" %% (NAME, VERSION)
    about += "".join("Requires-Dist: %%s\\n" %% one for one in NEEDS)
    kind = "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    files = {NAME + ".py": module(folder), info + "METADATA": about, info + "WHEEL": kind}
    files[info + "RECORD"] = "".join(name + ",,\\n" for name in [*files, info + "RECORD"])
    file = "%%s-%%s-py3-none-any.whl" %% (NAME, VERSION)
    with zipfile.ZipFile(os.path.join(folder, file), "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return file
'''
EVIL = "PORT, HOME = %d, %r\n" % (PORT, HOME) + open(os.path.join(HERE, "evil_build.py")).read()
PLAIN = "def module(folder): return 'VERSION = %r' % VERSION\n"
FAILING = "def module(folder): raise RuntimeError('the compiler is not pleased')\n"
LIAR = "def module(folder): os.symlink('/etc/passwd', folder + '/six-99-py3-none-any.whl'); os._exit(0)\n"
LINK = "def module(folder): os.symlink('/etc/passwd', folder + '/bell_link-1.0-py3-none-any.whl'); os._exit(0)\n"
GREEDY = "def get_requires_for_build_wheel(settings=None): return ['--index-url=http://127.0.0.1:1/']\n" + PLAIN
PYTHON = [
    ("bell_plain", "1.0", ["bell-other<2"], PLAIN),
    ("bell_other", "1.0", [], PLAIN),
    ("bell_other", "2.0", [], PLAIN),
    ("bell_evil", "1.0", [], EVIL),
    ("bell_failing", "1.0", [], FAILING),
    ("bell_liar", "1.0", [], LIAR),
    ("bell_link", "1.0", [], LINK),
    ("bell_greedy", "1.0", [], GREEDY),
    ("bell_swapped", "1.0", [], PLAIN),
    ("bell_picky", "2.0", ["bell-none>9"], PLAIN),
]
WHEELS = [("bell_tool", "1.0", []), ("bell_picky", "1.0", ["bell-other"])]
POSTINSTALL = "const PORT = %d, HOME = %s;\n" % (PORT, json.dumps(HOME))
POSTINSTALL += open(os.path.join(HERE, "evil_postinstall.js")).read()
SCRIPTS = {"postinstall": "node p.js"}
NPM = [
    ("bell-evil", SCRIPTS, {"p.js": POSTINSTALL, "seen.json": '"it did not run"'}),
    ("bell-failing", SCRIPTS, {"p.js": "console.error('the compiler is not pleased'); process.exit(3)"}),
    ("bell-trace", {}, {"index.js": open(os.path.join(HERE, "zygote/trace.js")).read()}),
]


def archive(path, files):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    with open(path, "rb") as file:
        return file.read()


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a") as file:
        file.write(text)


for name, version, needs, module in PYTHON:
    top = "%s-%s/" % (name, version)
    system = '[build-system]\nrequires = ["bell-tool"]\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    packed = archive("%s/files/%s.tar.gz" % (OUT, top[:-1]), {
        top + "pyproject.toml": system,
        top + "PKG-INFO": "Metadata-Version: 2.1\nName: %s\nVersion: %s\n" % (name, version),
        top + "backend.py": BACKEND % (name, version, needs) + module,
    })
    # One package does not match the hash in the index.
    digest = hashlib.sha256(b"" if name == "bell_swapped" else packed).hexdigest()
    link = '<a href="../../files/%s.tar.gz#sha256=%s">%s.tar.gz</a>\n' % (top[:-1], digest, top[:-1])
    write("%s/simple/%s/index.html" % (OUT, name.replace("_", "-")), link)
for name, version, needs in WHEELS:
    made = {}
    exec(BACKEND % (name, version, needs) + PLAIN, made)
    file = made["build_wheel"](OUT + "/files")
    with open("%s/files/%s" % (OUT, file), "rb") as wheel:
        digest = hashlib.sha256(wheel.read()).hexdigest()
    link = '<a href="../../files/%s#sha256=%s">%s</a>\n' % (file, digest, file)
    write("%s/simple/%s/index.html" % (OUT, name.replace("_", "-")), link)
for name, scripts, files in NPM:
    about = {"name": name, "version": "1.0.0", "scripts": scripts}
    files = {"package/" + file: text for file, text in files.items()}
    files["package/package.json"] = json.dumps(about)
    packed = archive("%s/files/%s-1.0.0.tgz" % (OUT, name), files)
    about["dist"] = {
        "tarball": "%s/files/%s-1.0.0.tgz" % (ADDRESS, name),
        "integrity": "sha512-" + base64.b64encode(hashlib.sha512(packed).digest()).decode(),
    }
    packument = {"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": about}}
    write("%s/npm/%s" % (OUT, name), json.dumps(packument))
