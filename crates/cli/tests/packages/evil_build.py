# Inspects its surroundings and leaves traces while it is built, as malicious packages have done; records what
# it found.
import json, socket


def reached():
    places = [("127.0.0.1", PORT), ("pypi.org", 443), ("1.1.1.1", 53)]
    for place in places:
        try:
            socket.create_connection(place, timeout=2).close()
            yield "%s:%d" % place
        except OSError:
            pass


def left():
    folders = ["/", "/etc", "/usr", "/usr/local/lib", "/var", "/root"]
    for top in ("/opt", HOME):
        folders += [folder for folder, _, _ in os.walk(top)]
    for folder in folders:
        try:
            os.chmod(folder, 0o777)
        except OSError:
            pass
        try:
            open(os.path.join(folder, "bell-was-here"), "w").close()
            yield folder
        except OSError:
            pass


def read():
    for path in ("/etc/shadow", HOME + "/secret", "/opt/belljar/tools/.npmrc", "/opt/belljar/cache", "/opt/belljar/tools",
                 "/root/.ssh", "/var/run/docker.sock", HOME + "/cache/belljar/layers/installers"):
        if os.access(path, os.R_OK):
            yield path


def rights():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
    yield from (name for name, good in (("NoNewPrivs", "1"), ("Seccomp", "2")) if lines[name].strip() != good)
    if os.geteuid() == 0 and open("/proc/self/uid_map").read().split()[1] == "0":
        yield "root"


def module(folder):
    words = ("SECRET", "TOKEN", "INDEX", "PIP_", "UV_", "NPM_", "PROXY")
    seen = {
        "environment": [name for name in os.environ if any(word in name.upper() for word in words)],
        "reached": list(reached()),
        "left": list(left()),
        "read": list(read()),
        "rights": list(rights()),
    }
    return "SEEN = %r\n" % json.dumps(seen, sort_keys=True)
