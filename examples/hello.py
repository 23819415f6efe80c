"""Prints a greeting and what the sandbox looks like from inside.

    belljar run examples/hello.py
"""
import os
import platform

processes = [name for name in os.listdir("/proc") if name.isdigit()]

print(f"Hello from Python {platform.python_version()}, under glass.")
print(f"I am user {os.getuid()} on host {platform.node()}, in {os.getcwd()}.")
print(f"I see {len(processes)} processes, and none of yours.")
