# Processes are limited, also across generations; a program that survives a refused fork continues.
# expect: succeeded
# needs: cgroup.pids
# with: --processes 16
import errno
import os
import signal

from probe import check, finish

children = []
refusal = None
for _ in range(100):
    try:
        pid = os.fork()
    except OSError as error:
        refusal = error.errno
        break
    if pid == 0:
        signal.pause()
        os._exit(0)
    children.append(pid)
check("forks end", refusal == errno.EAGAIN, refusal)
check("no more than were allowed", len(children) < 16, len(children))
for pid in children:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
pid = os.fork()
if pid == 0:
    os._exit(0)
check("there is room again", os.waitpid(pid, 0)[1] == 0)
finish(3)
