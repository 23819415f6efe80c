# Neither the old nor the new mount API works, nor changing the root.
# expect: succeeded
import ctypes
import os

from probe import check, finish, refused

text = ctypes.c_char_p
MS_BIND, MS_REMOUNT, MS_MOVE, MNT_DETACH = 4096, 32, 8192, 2
refused("mount", text(b"tmpfs"), text(b"/tmp"), text(b"tmpfs"), 0, 0, what="a tmpfs")
refused("mount", text(b"proc"), text(b"/tmp"), text(b"proc"), 0, 0, what="proc")
refused("mount", text(b"/proc"), text(b"/tmp"), 0, MS_BIND, 0, what="a bind")
refused("mount", 0, text(b"/"), 0, MS_REMOUNT | MS_BIND, 0, what="read-write")
refused("mount", text(b"/proc/sys"), text(b"/tmp"), 0, MS_MOVE, 0, what="a move")
for path in (b"/proc/kcore", b"/proc/sys", b"/proc/keys", b"/tmp", b"/dev/shm", b"/proc", b"/"):
    refused("umount2", text(path), MNT_DETACH, what=path.decode())
refused("pivot_root", text(b"/tmp"), text(b"/tmp"))
refused("chroot", text(b"/tmp"))
refused("fsopen", text(b"tmpfs"), 0)
refused("fsconfig", 0, 6, 0, 0, 0)
refused("fsmount", 0, 0, 0)
refused("fspick", -100, text(b"/"), 0)
refused("open_tree", -100, text(b"/"), 1)
refused("move_mount", -100, text(b"/proc"), -100, text(b"/tmp"), 0)
refused("mount_setattr", -100, text(b"/"), 0, 0, 0)
refused("open_by_handle_at", -100, 0, 0)
refused("name_to_handle_at", -100, text(b"/"), 0, 0, 0)
refused("swapon", text(b"/tmp/x"), 0)
refused("quotactl", 0, 0, 0, 0)
before = os.getcwd()
check("the root has no way up", os.stat("/..").st_ino == os.stat("/").st_ino and before == "/workspace")
finish(25)
