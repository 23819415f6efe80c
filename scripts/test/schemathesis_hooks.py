"""What schemathesis cannot know: which ids there are, and how lines of JSON are written and read."""

import json
import os

import schemathesis

# What stands for an answer without lines, which a batch without lines has.
NOTHING = {"index": 0, "error": {"code": "invalid_request", "message": "", "request_id": None}}


THERE = {"tenant": "default", "profile": "there"}


@schemathesis.hook
def map_path_parameters(ctx, path_parameters):
    """Half of all names are made up, and nothing is found by them; the others are of something that is there."""
    operation = ctx.operation
    there = dict(THERE, id=os.environ["EXECUTION"])
    if operation.path.startswith("/v1/sandboxes"):
        # One that has ended would refuse everything else.
        there["id"] = os.environ["SANDBOX"] if operation.method.upper() != "DELETE" else "sbx_gone"
    if operation.path.startswith("/v1/tools"):
        there["name"] = "check_code"
    for name, value in (path_parameters or {}).items():
        if name in there and len(str(value)) % 2:
            path_parameters[name] = there[name]
    return path_parameters


@schemathesis.serializer("application/x-ndjson")
def to_lines(ctx, value):
    return 2 * (json.dumps(value).encode() + b"\n")


@schemathesis.deserializer("application/x-ndjson")
def from_lines(ctx, response):
    """The document describes a line, and both lines are alike."""
    lines = response.content.splitlines()
    return json.loads(lines[0]) if lines else NOTHING
