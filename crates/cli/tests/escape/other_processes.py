# PID 1 reveals nothing, and no process can be traced, read or modified.
# expect: succeeded
import os
import signal
import time

from probe import check, fails, finish, refused

child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
for pid in (1, child):
    for request, name in ((16, "attach"), (0x4206, "seize")):
        refused("ptrace", request, pid, 0, 0, what=f"{name} {pid}")
    refused("process_vm_readv", pid, 0, 0, 0, 0, 0, what=str(pid))
    refused("process_vm_writev", pid, 0, 0, 0, 0, 0, what=str(pid))
    refused("pidfd_open", pid, 0, what=str(pid))
    refused("kcmp", pid, os.getpid(), 0, 0, 0, what=str(pid))
refused("ptrace", 0, 0, 0, 0, what="me")
refused("pidfd_getfd", 0, 0, 0)
refused("pidfd_send_signal", 0, 9, 0, 0)
refused("process_madvise", 0, 0, 0, 0, 0)
refused("process_mrelease", 0, 0)
for name in ("environ", "mem", "maps", "auxv", "stack", "syscall", "io", "cmdline", "status", "fd/0", "fdinfo/0"):
    fails(f"/proc/1/{name}", lambda n=name: open(f"/proc/1/{n}", "rb").read(64) or "nothing")
for name in ("root", "cwd", "exe", "ns/pid", "ns/mnt", "ns/user"):
    fails(f"/proc/1/{name}", os.readlink, f"/proc/1/{name}")
fails("/proc/1/root/etc/shadow", os.stat, "/proc/1/root/etc/shadow")
fails("/proc/1/fd", os.listdir, "/proc/1/fd")

pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
check("only processes of this run are seen", set(pids) <= {1, os.getpid(), child}, pids)
fails("end PID 1", os.kill, 1, signal.SIGKILL)
fails("end whoever started PID 1", os.kill, 0x3FFFFF, signal.SIGKILL)
os.kill(child, signal.SIGKILL)
check("an own child can be ended", os.waitpid(child, 0)[1] == signal.SIGKILL)
check("this is not PID 1", os.getpid() != 1)
finish(35)
