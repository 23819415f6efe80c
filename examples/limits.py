"""Takes memory until the limit ends it.

    belljar run examples/limits.py --memory 64M

The run ends with status 137, and the result says `"status": "limit_exceeded", "limit": "memory"`.
"""
MEGABYTE = 1 << 20

kept = []
while True:
    # Every page is written to, so that it is really there.
    kept.append(b"x" * (16 * MEGABYTE))
    print(f"{16 * len(kept)} MB", flush=True)
