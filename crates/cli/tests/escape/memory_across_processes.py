# Memory is accounted for all processes together: many small processes exceed the limit.
# expect: limit_exceeded memory
# needs: cgroup.memory
# with: --memory 64M --timeout 20s
import os
import time

for _ in range(8):
    if os.fork() == 0:
        hoard = bytearray(16 << 20)
        for at in range(0, len(hoard), 4096):
            hoard[at] = 1
        time.sleep(30)
        os._exit(0)
time.sleep(30)
