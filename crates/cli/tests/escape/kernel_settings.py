# Kernel settings cannot be changed, and host information in /proc is masked.
# expect: succeeded
import os

from probe import check, fails, finish

for name in [
    "kernel/core_pattern", "kernel/hostname", "kernel/domainname", "kernel/modprobe", "kernel/sysrq", "kernel/panic",
    "kernel/randomize_va_space", "kernel/ns_last_pid", "kernel/shmmax", "kernel/msgmax", "kernel/yama/ptrace_scope",
    "kernel/unprivileged_bpf_disabled", "vm/overcommit_memory", "vm/drop_caches", "vm/panic_on_oom", "fs/suid_dumpable",
    "fs/protected_symlinks", "fs/file-max", "fs/binfmt_misc/register", "net/ipv4/ip_forward",
    "net/ipv4/ping_group_range", "net/ipv4/ip_unprivileged_port_start", "net/core/somaxconn", "user/max_user_namespaces",
]:
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
        fails(f"open {name} {flags}", os.open, f"/proc/sys/{name}", flags)
writable = []
for folder, _, names in os.walk("/proc/sys"):
    for name in names:
        try:
            os.close(os.open(f"{folder}/{name}", os.O_WRONLY))
            writable.append(f"{folder}/{name}")
        except OSError:
            pass
check("no setting opens for writing", not writable, writable[:5])


def content(path):
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        return os.read(fd, 64)
    except OSError:
        return b""


for name in [
    "kcore", "kmsg", "kallsyms", "keys", "key-users", "iomem", "ioports", "modules", "slabinfo", "vmallocinfo",
    "timer_list", "sched_debug", "cmdline", "interrupts", "softirqs", "kpagecount", "kpageflags", "kpagecgroup",
]:
    seen = content(f"/proc/{name}")
    check(f"/proc/{name} shows nothing", seen == b"", seen)
for name in ("sysrq-trigger", "kmsg"):
    try:
        node = os.fstat(os.open(f"/proc/{name}", os.O_WRONLY))
        swallowed = (os.major(node.st_rdev), os.minor(node.st_rdev)) == (1, 3)
    except OSError:
        swallowed = True
    check(f"what is written to /proc/{name} is lost", swallowed)
for name in ("acpi", "asound", "bus", "driver", "fs", "irq", "scsi"):
    if os.path.isdir(f"/proc/{name}"):
        check(f"/proc/{name} is empty", not os.listdir(f"/proc/{name}"))
check("/sys is empty", not os.listdir("/sys"))
finish(60)
