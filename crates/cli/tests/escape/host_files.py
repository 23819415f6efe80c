# Files of the host that no program needs are not visible.
# expect: succeeded
import os

from probe import check, fails, finish

for path in [
    "/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh", "/etc/machine-id", "/etc/fstab", "/etc/crontab",
    "/root/.ssh/id_rsa", "/root/.bash_history", "/root/.aws/credentials", "/root/.netrc", "/home/admin",
    "/var/lib", "/var/log", "/var/run", "/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock",
    "/run/systemd", "/run/user", "/run/secrets", "/boot", "/mnt", "/media", "/srv", "/lost+found", "/.dockerenv",
    "/host", "/trees", "/proc/host", "/sys/kernel", "/sys/fs", "/sys/class", "/dev/mem", "/dev/sda", "/dev/vda",
]:
    fails(path, os.lstat, path)

# An interpreter's prefix may lie in a home folder; nothing else of that home is visible.
def leaves(folder):
    found = []
    for name in sorted(os.listdir(folder)):
        path = f"{folder}/{name}"
        found.append(path) if not os.path.isdir(path) or os.path.ismount(path) else found.extend(leaves(path))
    return found

visible = [leaf for home in ("/home", "/root") if os.path.isdir(home) for leaf in leaves(home)]
strangers = [leaf for leaf in visible if leaf != "/home/sandbox" and not os.path.ismount(leaf)]
check("homes hold nothing but mounts of ours", not strangers, strangers[:5])
check("/var is empty", sorted(os.listdir("/var")) in (["tmp"], []), os.listdir("/var"))
check("the users are made up", len(open("/etc/passwd").readlines()) == 3)
sockets = []
for folder, _, names in os.walk("/run"):
    sockets += [f"{folder}/{name}" for name in names if f"{folder}/{name}" != "/run/belljar/sitecustomize.py"]
check("/run holds nothing but the module that prepares Python", not sockets, sockets)
old_root = [line.split()[4] for line in open("/proc/self/mountinfo") if "/host" in line.split()[4]]
check("the launcher's view of the host is gone", not old_root, old_root)
finish(30)
