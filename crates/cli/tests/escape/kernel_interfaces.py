# Parts of the kernel with a history of vulnerabilities are unreachable, and so is everything that needs an
# administrator.
# expect: succeeded
import ctypes
import os

from probe import check, finish, refused, syscall

text = ctypes.c_char_p
room = ctypes.create_string_buffer(256)
refused("keyctl", 0, -3, 1)
refused("add_key", text(b"user"), text(b"x"), text(b"y"), 1, -3)
refused("request_key", text(b"user"), text(b"x"), 0, 0)
for command in (0, 5, 18):
    refused("bpf", command, room, 128, what=str(command))
refused("io_uring_setup", 8, room)
refused("io_uring_enter", 0, 0, 0, 0, 0)
refused("io_uring_register", 0, 0, 0, 0)
refused("userfaultfd", 0)
refused("userfaultfd", 1, what="user mode only")
refused("perf_event_open", room, 0, -1, -1, 0)
refused("fanotify_init", 0, 0)
# Confinement is set up before the program starts, and cannot be changed afterwards.
refused("seccomp", 1, 0, 0)
refused("landlock_create_ruleset", 0, 0, 1)
refused("init_module", room, 16, text(b""))
refused("finit_module", 0, text(b""), 0)
refused("delete_module", text(b"x"), 0)
refused("kexec_load", 0, 0, 0, 0)
refused("kexec_file_load", 0, 0, 0, text(b""), 0)
refused("reboot", 0xFEE1DEAD, 672274793, 0, 0)
refused("acct", text(b"/tmp/x"))
refused("syslog", 3, room, 256)
refused("sethostname", text(b"mine"), 4)
refused("setdomainname", text(b"mine"), 4)
refused("settimeofday", room, 0)
refused("clock_settime", 0, room)
refused("capset", room, room)
for value, name in ((0x40000, "no randomisation"), (0x400000, "everything executable"), (0x100000, "mappings at 0")):
    refused("personality", value, what=name)
fd, failure = syscall("memfd_create", text(b"honest"), 0)
check("an honest memfd works", fd > 2 and failure is None)
check("the own kernel log is closed", not os.path.exists("/dev/kmsg"))
finish(25)
