"""Does what gVisor allows everybody, prints the results, and stays until the test has inspected it from outside."""
import os
import time


def works(action):
    try:
        action()
        return True
    except OSError:
        return False


def lower_own_score():
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write("-900")


kept = []
did = [
    works(lambda: os.nice(-10)),
    works(lower_own_score),
    works(lambda: kept.append(os.open("/dev/fuse", os.O_RDWR))),
    works(lambda: kept.append(os.open("/dev/net/tun", os.O_RDWR))),
]
print("did", *did, flush=True)
time.sleep(60)
