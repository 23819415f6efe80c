# A program that fails because no process was left has ended by that limit.
# expect: limit_exceeded processes
# needs: cgroup.pids
# with: --processes 8
import os
import time

for _ in range(50):
    if os.fork() == 0:
        time.sleep(30)
        os._exit(0)
