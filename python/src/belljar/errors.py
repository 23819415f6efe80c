"""All exceptions.

A failing program is not an error: it gives a :class:`~belljar.Result`. :class:`ProgramFailed` is raised only with
``check=True`` or by :meth:`~belljar.Result.raise_for_status`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .result import Finding, Result
    from .states import CommandResult


class BelljarError(Exception):
    """Base class of all exceptions of this package."""


# ── Failures of programs, raised on request ──────────────────────────────────────────────────────────────────────────


class ProgramFailed(BelljarError):
    """The program ran and did not succeed; see ``result``."""

    def __init__(self, message: str, result: Result | CommandResult) -> None:
        super().__init__(message)
        self.result = result


class SandboxTimeout(ProgramFailed, TimeoutError):
    """The program reached its time limit."""


class LimitExceeded(ProgramFailed):
    """The program was ended by a limit: memory, processes, disk or output."""


class Refused(BelljarError):
    """A policy refused the code or command; see ``findings``."""

    findings: tuple[Finding, ...] = ()


class CodeRefused(ProgramFailed, Refused):
    """A policy refused code; there is a ``result`` with the status ``refused``."""


class Cancelled(ProgramFailed):
    """The execution was canceled, or interrupted because the server stopped."""


# ── Failed requests ──────────────────────────────────────────────────────────────────────────────────────────────────


class RequestFailed(BelljarError):
    """The server did not serve a request. ``code`` is one of a closed list of error codes."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        status: int | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.request_id = request_id
        self.retry_after = retry_after

    def __str__(self) -> str:
        known_as = f", {self.request_id}" if self.request_id else ""
        return f"{self.args[0]} ({self.code}{known_as})"


class InvalidRequest(RequestFailed, ValueError):
    """The request is invalid."""


class Unsupported(InvalidRequest):
    """The server cannot do this: for example, it has no runtime for a language, or its kernel lacks a layer."""


class AuthenticationError(RequestFailed):
    """The API key is missing or invalid."""


class PermissionDenied(RequestFailed):
    """The API key or the sandbox user lacks the permission."""


class NotFound(RequestFailed, LookupError):
    """The object does not exist, or belongs to another tenant."""


class Conflict(RequestFailed):
    """The object already exists, is in use, paused, full or has ended."""


class SandboxEnded(Conflict):
    """The sandbox has ended; open another."""


class SandboxPaused(Conflict):
    """The sandbox is paused; resume it."""


class PortUnavailable(RequestFailed):
    """Nothing answered at that port of the sandbox, or not with HTTP, or not in time."""


class CommandRefused(RequestFailed, Refused):
    """A policy refused a command in a sandbox."""


class DependencyFailed(RequestFailed):
    """A requested package cannot be resolved or built. Nothing ran."""


class Busy(RequestFailed):
    """The server is overloaded, or a quota is used up; retry after ``retry_after`` seconds."""


class ServerFailed(RequestFailed):
    """The server failed."""


# ── Connections and the private server ───────────────────────────────────────────────────────────────────────────────


class ConnectionFailed(BelljarError, ConnectionError):
    """The server could not be reached, or the connection broke; the request may have run."""


class NotStarted(BelljarError):
    """The private server of this process could not be started."""


class BinaryNotFound(NotStarted):
    """The ``belljar`` program was not found; the message says how to install it."""


_KINDS: dict[type[RequestFailed], tuple[str, ...]] = {
    InvalidRequest: (
        "invalid_request",
        "invalid_limit",
        "unknown_language",
        "unknown_profile",
        "unsupported_media_type",
        "too_large",
        "method_not_allowed",
        "bad_archive",
        "range_not_satisfiable",
        "misdirected",
    ),
    Unsupported: ("language_unavailable", "unsupported", "layer_unavailable"),
    AuthenticationError: ("unauthorized",),
    PermissionDenied: ("forbidden", "foreign_origin", "permission_denied"),
    NotFound: ("not_found",),
    Conflict: ("conflict", "idempotency_conflict", "disk_full"),
    SandboxEnded: ("sandbox_ended",),
    SandboxPaused: ("sandbox_paused",),
    PortUnavailable: ("port_closed", "port_failed", "port_timeout"),
    CommandRefused: ("refused",),
    DependencyFailed: ("dependency_unresolvable", "dependency_build_failed"),
    Busy: (
        "too_many_requests",
        "quota_exceeded",
        "overloaded",
        "shutting_down",
        "too_many_sandboxes",
        "sandbox_memory_exhausted",
    ),
    ServerFailed: ("setup_failed", "request_timeout", "storage_full", "storage_unavailable", "internal"),
}

#: The exception for each error code.
BY_CODE: dict[str, type[RequestFailed]] = {code: kind for kind, codes in _KINDS.items() for code in codes}

#: Codes after which nothing has run, so that the same request may be sent again.
NOTHING_RAN = frozenset({"too_many_requests"})
#: Temporary failures after which something may have run; for example, the result of a run could not be stored.
TRY_LATER = frozenset({"overloaded", "shutting_down", "storage_unavailable", "sandbox_memory_exhausted"})
