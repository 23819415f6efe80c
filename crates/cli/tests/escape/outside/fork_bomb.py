# Every process forks, and none waits.
# expect: timed_out
# with: --timeout 1s --processes 32
import os

while True:
    try:
        os.fork()
    except OSError:
        pass
