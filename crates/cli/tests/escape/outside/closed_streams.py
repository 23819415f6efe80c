# Without its streams a program runs until its time limit.
# expect: timed_out
# with: --timeout 700ms
import os
import time

os.closerange(0, 64)
time.sleep(300)
