# Memory behind a file descriptor (memfd) counts.
# expect: limit_exceeded memory
# needs: cgroup.memory
# with: --memory 64M --timeout 20s
import os

kept = []
block = b"x" * (1 << 20)
for _ in range(20):
    kept.append(os.memfd_create("hoard"))
    for _ in range(20):
        os.write(kept[-1], block)
