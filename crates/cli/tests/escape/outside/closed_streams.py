# Without its streams the program runs on until its time is over.
# expect: timed_out
# with: --timeout 700ms
import os
import time

os.closerange(0, 64)
time.sleep(300)
