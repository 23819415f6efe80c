"""Lines of JSON for schemathesis: a batch is a request a line in, and a result or an error a line out."""

import json

import schemathesis

# What stands for an answer without lines, which a batch without lines has.
NOTHING = {"index": 0, "error": {"code": "invalid_request", "message": "", "request_id": None}}


@schemathesis.serializer("application/x-ndjson")
def to_lines(ctx, value):
    return 2 * (json.dumps(value).encode() + b"\n")


@schemathesis.deserializer("application/x-ndjson")
def from_lines(ctx, response):
    """The document describes a line, and both lines are alike."""
    lines = response.content.splitlines()
    return json.loads(lines[0]) if lines else NOTHING
