"""Everything that can be raised, by kind.

What a program did is not an error: a failed run is a :class:`~belljar.Result`. It becomes a :class:`ProgramFailed` only
where somebody asks for that, with ``check=True`` or :meth:`~belljar.Result.raise_for_status`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .result import Finding, Result
    from .states import CommandResult


class BelljarError(Exception):
    """The base of them all."""


# ── What a program did, where somebody asked to have that raised ─────────────────────────────────────────────────────


class ProgramFailed(BelljarError):
    """It ran, and did not succeed. ``result`` is what it did."""

    def __init__(self, message: str, result: Result | CommandResult) -> None:
        super().__init__(message)
        self.result = result


class SandboxTimeout(ProgramFailed, TimeoutError):
    """Its time was over."""


class LimitExceeded(ProgramFailed):
    """A limit ended it: memory, processes, disk or output."""


class Refused(BelljarError):
    """A policy did not let it run; ``findings`` says why."""

    findings: tuple[Finding, ...] = ()


class CodeRefused(ProgramFailed, Refused):
    """The same of code, where that is a result like any other."""


class Cancelled(ProgramFailed):
    """Somebody ended it, or the server did."""


# ── Why a request was not served ─────────────────────────────────────────────────────────────────────────────────────


class RequestFailed(BelljarError):
    """The server did not serve a request. ``code`` is a word of a closed list."""

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
    """Something about the request has to change."""


class Unsupported(InvalidRequest):
    """Known, but not possible on that server: a language it has no runtime for, a layer that its kernel lacks."""


class AuthenticationError(RequestFailed):
    """No key, or none that opens anything."""


class PermissionDenied(RequestFailed):
    """The key does not open this, or the sandbox's user may not do it."""


class NotFound(RequestFailed, LookupError):
    """There is none, or it is another tenant's."""


class Conflict(RequestFailed):
    """It is there already, in use, paused, full or over."""


class SandboxEnded(Conflict):
    """The sandbox has ended; open another."""


class SandboxPaused(Conflict):
    """The sandbox is paused; resume it."""


class PortUnavailable(RequestFailed):
    """Nobody answers at that port of the sandbox, at least not in HTTP or not in time."""


class CommandRefused(RequestFailed, Refused):
    """A policy did not let a command of a sandbox run."""


class DependencyFailed(RequestFailed):
    """A package that was asked for cannot be had, or not be built. Nothing ran."""


class Busy(RequestFailed):
    """There is too much to do, or a quota is used up; ``retry_after`` says in how many seconds to try again."""


class ServerFailed(RequestFailed):
    """The server could not do its part."""


# ── What came between ────────────────────────────────────────────────────────────────────────────────────────────────


class ConnectionFailed(BelljarError, ConnectionError):
    """The server could not be reached, or the connection broke. What was under way may have run."""


class NotStarted(BelljarError):
    """The private server of this process could not be started."""


class BinaryNotFound(NotStarted):
    """The program ``belljar`` is not here; the message says how to get it."""


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

#: Which exception stands for which code.
BY_CODE: dict[str, type[RequestFailed]] = {code: kind for kind, codes in _KINDS.items() for code in codes}

#: After this nothing has run, so the same request may be sent again.
NOTHING_RAN = frozenset({"too_many_requests"})
#: After these it is worth another try, but something may have run: a result that cannot be kept is answered so, too.
TRY_LATER = frozenset({"overloaded", "shutting_down", "storage_unavailable", "sandbox_memory_exhausted"})
