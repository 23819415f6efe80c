# User ids, priorities, limits and set-uid programs give no additional privileges.
# expect: succeeded
import os
import resource
import stat
import subprocess

from probe import check, fails, finish

for uid in (0, 1, 999, 65534):
    fails(f"become user {uid}", os.setuid, uid)
    fails(f"become group {uid}", os.setgid, uid)
    fails(f"become all of {uid}", os.setresuid, uid, uid, uid)
fails("take groups", os.setgroups, [0])
fails("be more urgent", os.setpriority, os.PRIO_PROCESS, 0, -5)
for name in ("SCHED_FIFO", "SCHED_RR"):
    fails(f"real time {name}", os.sched_setscheduler, 0, getattr(os, name), os.sched_param(1))
for name in ("NOFILE", "NPROC", "CORE", "FSIZE", "MEMLOCK", "MSGQUEUE", "RTPRIO", "NICE", "SIGPENDING"):
    kind = getattr(resource, f"RLIMIT_{name}", None)
    if kind is None:
        continue
    soft, hard = resource.getrlimit(kind)
    check(f"{name} is finite", hard != resource.RLIM_INFINITY, hard)
    try:
        resource.setrlimit(kind, (hard + 1, hard + 1))
        check(f"raise {name}", False)
    except (ValueError, OSError) as error:
        check(f"raise {name}", True, error)
check("core files are off", resource.getrlimit(resource.RLIMIT_CORE) == (0, 0))

tried = 0
for name in ("su", "sudo", "passwd", "mount", "newgrp", "chsh", "gpasswd", "newuidmap", "pkexec"):
    path = f"/usr/bin/{name}"
    if not os.path.exists(path) or not os.stat(path).st_mode & stat.S_ISUID:
        continue
    tried += 1
    child = subprocess.run(["python3", "-c", f"import os; os.execv({path!r}, [{name!r}, '--help'])"],
                           stdin=subprocess.DEVNULL, capture_output=True, timeout=10)
    check(f"{name} runs without its bit, or not at all", b"uid=0" not in child.stdout)
print(f"{tried} set-uid programs tried")
seen = subprocess.run(["id", "-u"], capture_output=True, text=True).stdout.strip()
check("programs have the same user", seen == "1000", seen)
finish(25)
