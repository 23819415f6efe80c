# Forks twice, leaves its session and keeps the pipes open: it still ends with the run.
# expect: succeeded
import os
import signal
import sys
import time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        os.execvp("sleep", [f"sleep-{sys.argv[1]}", "300"])
    os._exit(0)
os.wait()
print("HELD: left a daemon", flush=True)
