# Replaces the code that forks warm children, and answers with a process that was never confined.
import ctypes
import gc
import os
import socket
import struct
import types

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE = 56
# CLONE_PARENT | CLONE_PIDFD | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID: what a zygote's seccomp filter
# allows.
CHILD = 0x1209000
LINE, OWN_LINE = 3, 7
READY, FERTILE = 1, 5


def fork():
    pidfd, tid = ctypes.c_int(-1), ctypes.c_int(0)
    pid = LIBC.syscall(CLONE, CHILD, 0, ctypes.byref(pidfd), ctypes.byref(tid), 0)
    return pid, pidfd.value


def receive(line):
    return socket.recv_fds(line, 1 << 16, 16)[:2]


def pretend_to_be_confined(own_line):
    line = socket.socket(fileno=own_line)
    line.send(struct.pack("IIi", READY, 0, 0))
    _, fds = receive(line)
    os.write(fds[2], b"FORGED\n")
    os._exit(0)


def serve_forks():
    line = socket.socket(fileno=os.dup(LINE))
    line.send(struct.pack("IIi", FERTILE, 0, 0))
    while True:
        packet, fds = receive(line)
        if not packet:
            os._exit(0)
        if not fds:
            continue
        pid, between = fork()
        if pid == 0:
            os._exit(0)
        pid, child = fork()
        if pid == 0:
            pretend_to_be_confined(fds[OWN_LINE])
        socket.send_fds(line, [struct.pack("Ii", 0, 0)], [between, child])
        for fd in fds + [between, child]:
            os.close(fd)


for module in gc.get_objects():
    if isinstance(module, types.ModuleType) and module.__name__ == "_belljar":
        module.serve_forks = serve_forks
