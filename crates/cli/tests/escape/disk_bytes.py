# Everything writable is on one disk; a program that fails because it is full has ended by that limit.
# expect: limit_exceeded disk
# with: --disk 8M
block = b"x" * (1 << 20)
for number, folder in enumerate(["/tmp", "/workspace", "/dev/shm", "/home/sandbox"] * 4):
    with open(f"{folder}/part{number}", "wb") as file:
        file.write(block)
