"""JSON with exact numbers: integers of any size, and no NaN or infinities, which JSON does not have."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

#: Digits that ``int`` and ``str`` convert at once; more may exceed Python's limit.
_DIGITS = 4_000


class NotJson(ValueError):
    """A value is not JSON."""


def loads(text: str | bytes) -> Any:
    """Parses JSON, with integers of any size."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        # An integer has more digits than Python converts by default.
        return json.loads(text, parse_int=_integer)


def _integer(digits: str) -> int:
    if digits.startswith("-"):
        return -_integer(digits[1:])
    if len(digits) <= _DIGITS:
        return int(digits)
    low = len(digits) // 2
    factor: int = 10**low
    return _integer(digits[:-low]) * factor + _integer(digits[-low:])


def dumps(value: Any) -> str:
    """Formats a value as JSON, with integers of any size."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except ValueError:
        # An integer has more digits than Python converts by default.
        return _dumps_long(value)


def _dumps_long(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(name))}: {_dumps_long(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_dumps_long, value)) + "]"
    if isinstance(value, int) and not isinstance(value, bool):
        return _digits(value)
    return json.dumps(value, ensure_ascii=False)


def _digits(number: int) -> str:
    if number < 0:
        return "-" + _digits(-number)
    # A decimal digit has 3.32 bits.
    low = number.bit_length() * 3 // 20
    if low * 2 < _DIGITS:
        return str(number)
    factor: int = 10**low
    return _digits(number // factor) + _digits(number % factor).rjust(low, "0")


def check(path: str, value: Any) -> None:
    """Raises an error that names the path of a number that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        raise NotJson(f"{path} is {value}, which JSON does not have; pass None or a string instead")
    if isinstance(value, Mapping):
        for name, item in value.items():
            check(f"{path}.{name}", item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            check(f"{path}[{index}]", item)
