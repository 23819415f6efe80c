# No namespace can be created or entered.
# expect: succeeded
import ctypes
import os
import struct

from probe import check, finish, refused, syscall

FLAGS = {
    "mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000,
    "pid": 0x20000000, "net": 0x40000000,
}
SIGCHLD = 17
for name, flag in [*FLAGS.items(), ("time", 0x80)]:
    refused("unshare", flag, what=name)
for name, flag in FLAGS.items():
    refused("clone", flag | SIGCHLD, 0, 0, 0, 0, what=name)
    refused("clone", FLAGS["user"] | flag | SIGCHLD, 0, 0, 0, 0, what=f"user and {name}")
    refused("clone", flag | SIGCHLD | 1 << 40, 0, 0, 0, 0, what=f"{name} with high bits")
refused("clone", 0x8000 | SIGCHLD, 0, 0, 0, 0, what="as a child of PID 1's parent")
arguments = struct.pack("8Q", FLAGS["user"], 0, 0, 0, SIGCHLD, 0, 0, 0)
refused("clone3", ctypes.c_char_p(arguments), len(arguments), answers=("ENOSYS",))
for name in os.listdir("/proc/self/ns"):
    fd = os.open(f"/proc/self/ns/{name}", os.O_RDONLY)
    refused("setns", fd, 0, what=name)
for path, text in (("uid_map", "0 0 1"), ("gid_map", "0 0 1"), ("setgroups", "allow")):
    try:
        with open(f"/proc/self/{path}", "w") as file:
            file.write(text)
        check(f"write {path}", False)
    except OSError as error:
        check(f"write {path}", True, error.strerror)
child = os.fork()
if child == 0:
    os._exit(7)
check("an honest fork works", os.waitpid(child, 0)[1] == 7 << 8)
finish(35)
