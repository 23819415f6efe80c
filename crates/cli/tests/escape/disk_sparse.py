# A sparse file and a preallocated file.
# expect: succeeded
# with: --disk 8M
import os
import signal

from probe import check, fails, finish

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
fd = os.open("/tmp/large", os.O_CREAT | os.O_RDWR)
fails("claim 1 GiB", os.ftruncate, fd, 1 << 30)
fails("reserve 64 MiB", os.posix_fallocate, fd, 0, 64 << 20)
fails("write far out", os.pwrite, fd, b"x", 1 << 40)
disk = os.statvfs("/tmp")
check("the disk is as large as was said", disk.f_blocks * disk.f_frsize == 8 << 20, disk.f_blocks * disk.f_frsize)
places = {os.stat(path).st_dev for path in ("/tmp", "/workspace", "/dev/shm", "/home/sandbox")}
check("all places are one disk", len(places) == 1, places)
finish(5)
