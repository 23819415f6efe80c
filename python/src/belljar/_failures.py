"""Converts error objects of the server and the command line to exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from .errors import BY_CODE, CommandRefused, RequestFailed, ServerFailed
from .result import read_findings


def failure(body: Any, *, status: int | None = None, retry_after: float | None = None) -> RequestFailed:
    """Returns the exception for an error object."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        message = f"the response is not from a belljar server (HTTP {status})"
        return ServerFailed(message, code="internal", status=status)
    code = str(error.get("code", "internal"))
    raised = BY_CODE.get(code, RequestFailed)(
        str(error.get("message", "")),
        code=code,
        status=status,
        request_id=error.get("request_id"),
        retry_after=retry_after,
    )
    if isinstance(raised, CommandRefused):
        raised.findings = read_findings(error.get("findings") or [])
    return raised


def failure_of(response: httpx.Response) -> RequestFailed:
    """Returns the exception for an error response whose body has been read."""
    try:
        body = response.json()
    except ValueError:
        body = None
    after = response.headers.get("retry-after", "")
    return failure(body, status=response.status_code, retry_after=float(after) if after.isdigit() else None)
