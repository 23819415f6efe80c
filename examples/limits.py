"""Allocates memory until the limit kills it.

    belljar run examples/limits.py --memory 64M

The run ends with status 137, and the result says `"status": "limit_exceeded", "limit": "memory"`.
"""
MEGABYTE = 1 << 20

kept = []
while True:
    # Touch every page, so that the memory is really allocated.
    kept.append(b"x" * (16 * MEGABYTE))
    print(f"{16 * len(kept)} MB", flush=True)
