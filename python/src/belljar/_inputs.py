"""One program with many inputs: groups of inputs, each for one call, and their results. Nothing here does I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import httpx

from . import _json
from ._events import Lines
from ._failures import failure
from ._http import Call
from ._request import Json
from .errors import BelljarError, ConnectionFailed
from .result import Result, read_result

#: Inputs of one call and their size, far below what a server accepts.
_MAX_INPUTS = 500
_MAX_BYTES = 4 << 20


def groups(argument_sets: Iterable[Mapping[str, Any]]) -> Iterator[list[Json]]:
    """Yields the inputs of each call."""
    group: list[Json] = []
    size = 0
    for arguments in argument_sets:
        _json.check("arguments", arguments)
        one = {"arguments": arguments}
        size += len(json.dumps(one))
        group.append(one)
        if len(group) >= _MAX_INPUTS or size >= _MAX_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def call(request: Json, inputs: Sequence[Json], jobs: int) -> Call[None]:
    """Returns the call that runs a program with these inputs."""
    body = {**request, "inputs": list(inputs), "jobs": jobs}
    return Call("POST", "/v1/executions", _nothing, json=body, headers={"accept": "application/x-ndjson"}, waits=True)


def _nothing(response: httpx.Response) -> None:
    return None


class InputResults:
    """Collects the results of a call, which arrive as lines, in any order."""

    def __init__(self, count: int, return_exceptions: bool) -> None:
        self._count = count
        self._return_exceptions = return_exceptions
        self._lines = Lines()
        self._found: dict[int, Result | BelljarError] = {}

    def feed(self, piece: bytes) -> None:
        for line in self._lines.feed(piece):
            data = _json.loads(line)
            outcome = read_result(data) if "status" in data else failure(data)
            if isinstance(outcome, BelljarError) and not self._return_exceptions:
                raise outcome
            self._found[data["index"]] = outcome

    def in_order(self, error: BelljarError | None = None) -> list[Result | BelljarError]:
        """Returns the results in the order of the inputs; ``error`` is why some are missing."""
        if len(self._found) < self._count:
            error = error or ConnectionFailed("the server's response ended early")
        if error is not None and not self._return_exceptions:
            raise error
        return [self._found[index] if error is None else self._found.get(index, error) for index in range(self._count)]
