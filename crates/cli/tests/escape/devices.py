# No device can be created, not even 0:0, which needs no privilege; /dev holds only harmless ones.
# expect: succeeded
import ctypes
import os
import stat

from probe import check, fails, finish, syscall

for kind, name in ((stat.S_IFCHR, "char"), (stat.S_IFBLK, "block")):
    for major, minor in ((0, 0), (1, 1), (1, 3), (5, 0), (8, 0), (10, 229), (259, 0)):
        for folder in ("/workspace", "/tmp", "/dev/shm", "/home/sandbox"):
            device = os.makedev(major, minor)
            fails(f"{name} {major}:{minor} in {folder}", os.mknod, f"{folder}/node", kind | 0o666, device)

# Moving a file may leave a 0:0 device (an overlayfs whiteout) in its place.
for folder in ("/workspace", "/tmp"):
    open(f"{folder}/old", "w").close()
    old, new = (ctypes.c_char_p(f"{folder}/{name}".encode()) for name in ("old", "new"))
    syscall("renameat2", -100, old, -100, new, 4)
    left = os.path.lexists(f"{folder}/old") and stat.S_ISCHR(os.lstat(f"{folder}/old").st_mode)
    check(f"a move leaves no device in {folder}", not left)

found = set(os.listdir("/dev"))
wanted = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin", "stdout", "stderr"}
check("/dev holds only these", found <= wanted, sorted(found - wanted))
check("/dev/null swallows", os.write(os.open("/dev/null", os.O_WRONLY), b"x") == 1)
check("/dev/urandom gives", len(os.read(os.open("/dev/urandom", os.O_RDONLY), 8)) == 8)
finish(50)
