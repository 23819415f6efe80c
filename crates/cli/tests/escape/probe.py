"""Shared by the programs of this folder: attempts that must be refused, facts that must hold, and the last line."""
import ctypes
import errno
import os
import platform

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long

# (x86-64, aarch64); numbers from 424 on are the same on all architectures.
NUMBERS = {
    "ptrace": (101, 117), "syslog": (103, 116), "personality": (135, 92), "pivot_root": (155, 41),
    "chroot": (161, 51), "acct": (163, 89), "settimeofday": (164, 170), "mount": (165, 40), "umount2": (166, 39),
    "swapon": (167, 224), "reboot": (169, 142), "sethostname": (170, 161), "setdomainname": (171, 162),
    "init_module": (175, 105), "delete_module": (176, 106), "quotactl": (179, 60), "clock_settime": (227, 112),
    "kexec_load": (246, 104), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "mknodat": (259, 33), "fchmodat": (268, 53), "unshare": (272, 97), "perf_event_open": (298, 241),
    "fanotify_init": (300, 262), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "setns": (308, 268),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272), "finit_module": (313, 273),
    "renameat2": (316, 276), "seccomp": (317, 277), "kexec_file_load": (320, 294), "bpf": (321, 280),
    "userfaultfd": (323, 282), "clone": (56, 220), "openat": (257, 56), "vhangup": (153, 58),
    "memfd_create": (319, 279), "capset": (126, 91),
    "pidfd_send_signal": (424,) * 2, "io_uring_setup": (425,) * 2, "io_uring_enter": (426,) * 2,
    "io_uring_register": (427,) * 2, "open_tree": (428,) * 2, "move_mount": (429,) * 2, "fsopen": (430,) * 2,
    "fsconfig": (431,) * 2, "fsmount": (432,) * 2, "fspick": (433,) * 2, "pidfd_open": (434,) * 2,
    "clone3": (435,) * 2, "openat2": (437,) * 2, "pidfd_getfd": (438,) * 2, "process_madvise": (440,) * 2,
    "mount_setattr": (442,) * 2, "landlock_create_ruleset": (444,) * 2, "process_mrelease": (448,) * 2,
    "fchmodat2": (452,) * 2,
}
REFUSALS = ("EPERM", "ENOSYS")
_attempts = 0
_broken = []


def syscall(name, *arguments):
    """Makes a raw system call. Returns its result, and the name of its errno or None."""
    number = NUMBERS[name][0 if platform.machine() == "x86_64" else 1]
    ctypes.set_errno(0)
    result = _LIBC.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return result, errno.errorcode.get(ctypes.get_errno(), "?") if result == -1 else None


def refused(name, *arguments, what="", answers=REFUSALS):
    """Checks that a call does not reach the kernel: any other errno would mean that it did."""
    result, failure = syscall(name, *arguments)
    if result == 0 and name in ("clone", "clone3"):
        os._exit(0)
    check(f"{name} {what}".strip(), failure in answers, f"gave {result} {failure}")


def fails(what, attempt, *arguments):
    """Checks that an attempt fails, with whatever error."""
    try:
        outcome = attempt(*arguments)
    except OSError as error:
        check(what, True, errno.errorcode.get(error.errno, "?"))
    else:
        check(what, False, f"gave {outcome!r}")


def check(what, holds, detail=""):
    """Checks that a fact holds."""
    global _attempts
    _attempts += 1
    print(f"{'held  ' if holds else 'BROKE '} {what}: {detail}")
    if not holds:
        _broken.append(what)


def finish(at_least=1):
    """Prints the last line."""
    if _attempts < at_least:
        print(f"BROKEN: only {_attempts} attempts were made")
    elif _broken:
        print(f"BROKEN: {', '.join(_broken)}")
    else:
        print(f"HELD: {_attempts} attempts")
