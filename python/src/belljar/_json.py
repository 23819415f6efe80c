"""JSON with exact numbers: integers of any size, and no NaN or infinities, which JSON does not have."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

#: Digits that ``int`` converts at once; more may exceed Python's limit.
_DIGITS = 4_000


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


def check(path: str, value: Any) -> None:
    """Raises a ValueError that names the path of a number that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path} is {value}, which JSON does not have; pass None or a string instead")
    if isinstance(value, Mapping):
        for name, item in value.items():
            check(f"{path}.{name}", item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            check(f"{path}[{index}]", item)
