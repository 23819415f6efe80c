# Files in the sandbox count as memory, even if the disk limit is larger.
# expect: limit_exceeded memory
# needs: cgroup.memory
# with: --memory 64M --disk 512M --timeout 20s
block = b"x" * (1 << 20)
for number in range(40):
    with open(f"/dev/shm/{number}", "wb") as file:
        for _ in range(10):
            file.write(block)
