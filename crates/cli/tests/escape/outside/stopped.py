# Stopped processes, and a program that stops itself.
# expect: timed_out
# with: --timeout 700ms
import os
import signal

for _ in range(3):
    if os.fork() == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
os.kill(os.getpid(), signal.SIGSTOP)
