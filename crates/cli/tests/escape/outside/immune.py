# Ignores every signal that can be ignored, in several processes.
# expect: timed_out
# with: --timeout 700ms
import os
import signal

for number in signal.valid_signals():
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
for _ in range(4):
    os.fork()
while True:
    pass
