"""Tries to use the network, which is off by default.

    belljar run examples/fetch.py                  refused
    belljar run examples/fetch.py --network full   allowed
"""
import socket

ADDRESS = ("1.1.1.1", 443)

try:
    with socket.create_connection(ADDRESS, timeout=5):
        print(f"Reached {ADDRESS[0]}: this run has a network.")
except OSError as error:
    print(f"Could not reach {ADDRESS[0]}: {error}")
    print("A sandbox has no network unless asked for: add --network full.")
