# Only the workspace, /tmp, /dev/shm and the home folder are writable.
# expect: succeeded
import os

from probe import check, fails, finish

ALLOWED = ["/workspace", "/tmp", "/home/sandbox", "/dev/shm"]
for folder in ALLOWED:
    path = f"{folder}/mine"
    with open(path, "w") as file:
        file.write("x")
    check(f"{folder} is writable", open(path).read() == "x")
    os.remove(path)

for folder in [
    "/", "/bin", "/dev", "/dev/pts", "/etc", "/home", "/lib", "/proc", "/proc/self", "/run", "/run/belljar", "/sbin",
    "/sys", "/usr", "/usr/bin", "/usr/lib", "/usr/local", "/usr/local/bin", "/var", os.path.dirname(os.__file__),
]:
    if os.path.isdir(folder):
        fails(f"make a file in {folder}", os.open, f"{folder}/planted", os.O_CREAT | os.O_WRONLY)
        fails(f"make a folder in {folder}", os.mkdir, f"{folder}/planted.d")
        fails(f"make a link in {folder}", os.symlink, "/tmp", f"{folder}/planted.l")
        fails(f"make an unnamed file in {folder}", os.open, folder, os.O_TMPFILE | os.O_RDWR)

for path in ["/etc/passwd", "/etc/hosts", "/usr/bin/env", os.__file__, os.path.realpath("/proc/self/exe")]:
    fails(f"open {path} for writing", os.open, path, os.O_WRONLY)
    fails(f"shorten {path}", os.truncate, path, 0)
    fails(f"remove {path}", os.remove, path)
    fails(f"move {path}", os.rename, path, "/tmp/moved")
    fails(f"change {path}", os.chmod, path, 0o777)
    fails(f"date {path}", os.utime, path)
    fails(f"link {path}", os.link, path, "/tmp/linked")
fails("write through /proc/self/exe", os.open, "/proc/self/exe", os.O_WRONLY)
fails("raise the own score", os.open, "/proc/self/oom_score_adj", os.O_WRONLY)
for folder in ["/", "/usr", "/etc"]:
    flags = os.statvfs(folder).f_flag
    check(f"{folder} is read-only and without set-id", flags & os.ST_RDONLY and flags & os.ST_NOSUID)
for folder in ALLOWED:
    flags = os.statvfs(folder).f_flag
    check(f"{folder} is without set-id and devices", flags & os.ST_NOSUID and flags & os.ST_NODEV)
mounts = [line.split() for line in open("/proc/self/mountinfo")]
mounts = [(words[4], words[words.index("-") + 1], words[5].split(",")) for words in mounts]
writable = [(path, flags) for path, kind, flags in mounts if "rw" in flags and kind not in ("proc", "devpts")]
bare = [path for path, flags in writable if not {"nosuid", "nodev"} <= set(flags)]
check("so is every mount that can be written", not bare, bare)
finish(80)
