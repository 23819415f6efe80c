"""Tries to use the network, which is off by default.

    belljar run examples/fetch.py                      refused
    belljar run examples/fetch.py --network internet   allowed
"""
from urllib.request import urlopen

URL = "https://example.com/"

try:
    with urlopen(URL, timeout=5):
        print(f"Reached {URL}: this run has a network.")
except OSError as error:
    print(f"Could not reach {URL}: {error}")
    print("A sandbox has no network unless asked for: add --network internet.")
