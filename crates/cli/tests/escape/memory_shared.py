# Shared memory segments count.
# expect: limit_exceeded memory
# needs: cgroup.memory
# with: --memory 64M --timeout 20s
import mmap

kept = []
for _ in range(20):
    kept.append(mmap.mmap(-1, 20 << 20))
    for at in range(0, 20 << 20, 4096):
        kept[-1][at] = 1
