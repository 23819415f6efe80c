# No file gets a set-uid or set-gid bit, whichever call is used.
# expect: succeeded
import ctypes
import os
import stat
import struct

from probe import check, fails, finish, syscall

os.umask(0)
AT_FDCWD = -100
SET_ID = stat.S_ISUID | stat.S_ISGID
made = []


def fresh():
    path = f"/workspace/file{len(made)}"
    open(path, "w").close()
    made.append(path)
    return path


for bits in (0o4755, 0o2755, 0o6777, 0o7777):
    fails(f"chmod {bits:o}", os.chmod, fresh(), bits)
    with open(fresh()) as file:
        fails(f"fchmod {bits:o}", os.fchmod, file.fileno(), bits)
    folder = os.open("/workspace", os.O_RDONLY)
    fails(f"fchmodat {bits:o}", lambda b=bits: os.chmod(os.path.basename(fresh()), b, dir_fd=folder))
    path = ctypes.c_char_p(fresh().encode())
    check(f"fchmodat2 {bits:o}", syscall("fchmodat2", AT_FDCWD, path, bits, 0)[1] in ("ENOSYS", "EPERM"))
    # The kernel looks only at the low half of the register.
    check(f"fchmodat {bits:o} with high bits", syscall("fchmodat", AT_FDCWD, path, bits | 1 << 32)[0] == -1)
    for flags in (os.O_CREAT | os.O_WRONLY, os.O_TMPFILE | os.O_RDWR):
        target = "/workspace" if flags & os.O_TMPFILE == os.O_TMPFILE else f"/workspace/open{bits}"
        made.append(target)
        fails(f"open {flags:o} {bits:o}", os.open, target, flags, bits)
    how = struct.pack("QQQ", os.O_CREAT | os.O_WRONLY, bits, 0)
    made.append(f"/workspace/how{bits}")
    name = ctypes.c_char_p(made[-1].encode())
    check(f"openat2 {bits:o}", syscall("openat2", AT_FDCWD, name, ctypes.c_char_p(how), len(how))[0] == -1)
    for kind in (stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK):
        made.append(f"/workspace/node{kind}{bits}")
        fails(f"mknod {kind | bits:o}", os.mknod, made[-1], kind | bits)
    made.append(f"/workspace/folder{bits}")
    try:
        os.mkdir(made[-1], bits)
    except OSError:
        pass
    fails(f"chmod of a folder {bits:o}", os.chmod, "/workspace", bits)

for path in made:
    if os.path.lexists(path):
        check(f"{path} has none", not os.lstat(path).st_mode & SET_ID, oct(os.lstat(path).st_mode))
os.chmod(fresh(), 0o755)
os.chmod("/workspace", 0o1777)
check("honest modes can be set", os.stat(made[-1]).st_mode & 0o777 == 0o755)
finish(60)
