# Always one generation ahead of a process counter; the program itself exits at once.
# expect: succeeded
import os
import time

print("HELD: left a chain of children", flush=True)
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.001)
