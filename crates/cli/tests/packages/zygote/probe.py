# Attempts, in a zygote, what only creating namespaces and mounts needs, and records the results.
import ctypes
import errno
import os

LIBC = ctypes.CDLL(None, use_errno=True)
NEW = {"user": 0x10000000, "mount": 0x20000, "net": 0x40000000, "pid": 0x20000000, "time": 0x80}
results = {}


def attempt(name, *arguments):
    ctypes.set_errno(0)
    done = LIBC.syscall(*arguments)
    if done == 0 and name.startswith("clone"):
        os._exit(0)
    results[name] = "done" if done >= 0 else errno.errorcode.get(ctypes.get_errno())


for kind, flag in NEW.items():
    attempt(f"unshare {kind}", 272, flag)
for kind, flag in NEW.items():
    if kind != "time":
        attempt(f"clone {kind}", 56, flag | 17, 0, 0, 0, 0)
attempt("clone parent", 56, 0x8000 | 17, 0, 0, 0, 0)
attempt("clone3", 435, 0, 0)
attempt("mount", 165, b"none", b"/tmp", b"tmpfs", 0, 0)
attempt("umount", 166, b"/tmp", 0)
attempt("move_mount", 429, -100, b"/", -100, b"/tmp", 0)
attempt("open_tree", 428, -100, b"/", 1)
attempt("pivot_root", 155, b"/", b"/")
attempt("sethostname", 170, b"x", 1)
attempt("landlock_create_ruleset", 444, 0, 0, 1)
attempt("setns any", 308, 0, 0)
attempt("ptrace", 101, 16, 1, 0, 0)
attempt("bpf", 321, 0, 0, 0)
attempt("kill builder", 62, 1, 9)
# The request's packages are not visible here.
for folder in ("/opt/belljar/python", "/opt/belljar/site", "/proc"):
    results[folder] = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
