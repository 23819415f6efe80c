"""Takes arguments and returns a value.

    belljar run examples/main_args.py --args '{"name": "Ada", "count": 3}'

What main() returns is printed as a line of JSON; with --json it is `result.value`.
"""


def main(name, count=1):
    return {"greetings": [f"Hello, {name}!"] * count, "count": count}
