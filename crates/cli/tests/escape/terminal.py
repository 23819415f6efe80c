# No input can be injected into a terminal, not even one's own, and not with high bits set either.
# expect: succeeded
import ctypes
import errno
import fcntl
import os

from probe import NUMBERS, check, fails, finish, refused

TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD, TIOCSCTTY = 0x5412, 0x541C, 0x541D, 0x5423, 0x540E
ours, theirs = os.openpty()
if os.fork() == 0:
    os.setsid()
    os._exit(0)
os.wait()
libc = ctypes.CDLL(None, use_errno=True)
for request in (TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD):
    for high in (0, 1 << 32, 0xFFFFFFFF << 32):
        ctypes.set_errno(0)
        result = libc.ioctl(ctypes.c_int(theirs), ctypes.c_ulong(request | high), ctypes.c_char_p(b"x\0\0\0"))
        check(f"ioctl {request | high:#x}", result == -1 and ctypes.get_errno() == errno.EPERM, ctypes.get_errno())
fails("/dev/tty has no terminal behind it", os.open, "/dev/tty", os.O_RDWR)
check("standard streams are no terminal", not any(os.isatty(fd) for fd in (0, 1, 2)))
refused("vhangup")
fcntl.ioctl(theirs, 0x5413, b"\0" * 8)
os.write(ours, b"hello\n")
check("an own terminal works", os.read(theirs, 16) == b"hello\n")
check("other terminals are not there", sorted(os.listdir("/dev/pts")) == ["0", "ptmx"], os.listdir("/dev/pts"))
finish(15)
