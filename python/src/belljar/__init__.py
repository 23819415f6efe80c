"""Runs untrusted code under glass.

    >>> import belljar
    >>> belljar.run("print(6 * 7)").stdout
    '42\\n'

With ``BELLJAR_SERVER`` and ``BELLJAR_API_KEY`` that happens on a server; without, on a private one that lives as long
as this process.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _calls
from ._archive import Downloaded
from ._events import Change, Events, Output
from ._request import CommandOptions, Limits, RunOptions, SandboxOptions, run_request
from .client import AsyncClient, Client
from .commands import AsyncCommand, Command
from .errors import (
    AuthenticationError,
    BelljarError,
    BinaryNotFound,
    Busy,
    Cancelled,
    CodeRefused,
    CommandRefused,
    Conflict,
    ConnectionFailed,
    DependencyFailed,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    NotStarted,
    PermissionDenied,
    PortUnavailable,
    ProgramFailed,
    Refused,
    RequestFailed,
    SandboxEnded,
    SandboxPaused,
    SandboxTimeout,
    ServerFailed,
    Unsupported,
)
from .playground import Playground
from .result import Artifact, Finding, Installed, Receipt, Result, Usage, read_result
from .sandbox import AsyncSandbox, Port, Sandbox
from .shell import AsyncShell, Shell
from .states import CommandInfo, CommandResult, FileInfo, SandboxInfo, Snapshot, Stats
from .streams import AsyncStream, Stream
from .toolbox import Toolbox

if TYPE_CHECKING:
    from typing_extensions import Unpack

__version__ = "0.1.0"

__all__ = [
    "Artifact",
    "AsyncClient",
    "AsyncCommand",
    "AsyncSandbox",
    "AsyncShell",
    "AsyncStream",
    "AuthenticationError",
    "BelljarError",
    "BinaryNotFound",
    "Busy",
    "Cancelled",
    "Change",
    "Client",
    "CodeRefused",
    "Command",
    "CommandInfo",
    "CommandOptions",
    "CommandRefused",
    "CommandResult",
    "Conflict",
    "ConnectionFailed",
    "DependencyFailed",
    "Downloaded",
    "FileInfo",
    "Finding",
    "Installed",
    "InvalidRequest",
    "LimitExceeded",
    "Limits",
    "NotFound",
    "NotStarted",
    "Output",
    "PermissionDenied",
    "Playground",
    "Port",
    "PortUnavailable",
    "ProgramFailed",
    "Receipt",
    "Refused",
    "RequestFailed",
    "Result",
    "RunOptions",
    "Sandbox",
    "SandboxEnded",
    "SandboxInfo",
    "SandboxOptions",
    "SandboxPaused",
    "SandboxTimeout",
    "ServerFailed",
    "Shell",
    "Snapshot",
    "Stats",
    "Stream",
    "Toolbox",
    "Unsupported",
    "Usage",
    "aexecute_code",
    "amap",
    "arun",
    "astream",
    "execute_code",
    "map",
    "run",
    "stream",
]


def run(
    code: str | bytes | None = None,
    *,
    check: bool = False,
    idempotency_key: str | None = None,
    **options: Unpack[RunOptions],
) -> Result:
    """Runs code, or ``command=…``, in a fresh sandbox. That a program fails is no error unless ``check`` is set."""
    with Client() as client:
        return client.run(code, check=check, idempotency_key=idempotency_key, **options)


async def arun(
    code: str | bytes | None = None,
    *,
    check: bool = False,
    idempotency_key: str | None = None,
    **options: Unpack[RunOptions],
) -> Result:
    """The same, awaited."""
    async with AsyncClient() as client:
        return await client.run(code, check=check, idempotency_key=idempotency_key, **options)


def stream(code: str | bytes | None = None, **options: Unpack[RunOptions]) -> Stream[Output, Result]:
    """Output as it comes; ``.result()`` gives what there is at the end."""
    call = _calls.stream(run_request(code, **options))
    return Stream(Client()._transport, call, Events("result", read_result), owned=True)


def astream(code: str | bytes | None = None, **options: Unpack[RunOptions]) -> AsyncStream[Output, Result]:
    """The same, awaited: ``async for piece in astream(…)``."""
    call = _calls.stream(run_request(code, **options))
    return AsyncStream(AsyncClient()._transport, call, Events("result", read_result), owned=True)


def map(
    code: str | bytes,
    argument_sets: Iterable[Mapping[str, Any]],
    *,
    jobs: int = 8,
    return_exceptions: bool = False,
    **options: Unpack[RunOptions],
) -> list[Result | BelljarError]:
    """Calls ``main`` of the code with each of these arguments, so many at a time; results are in their order."""
    with Client() as client:
        return client.map(code, argument_sets, jobs=jobs, return_exceptions=return_exceptions, **options)


async def amap(
    code: str | bytes,
    argument_sets: Iterable[Mapping[str, Any]],
    *,
    jobs: int = 8,
    return_exceptions: bool = False,
    **options: Unpack[RunOptions],
) -> list[Result | BelljarError]:
    """The same, awaited."""
    async with AsyncClient() as client:
        return await client.map(code, argument_sets, jobs=jobs, return_exceptions=return_exceptions, **options)


def execute_code(
    code: str,
    language: str = "python",
    context: Mapping[str, Any] | None = None,
    explicit_dependencies: Sequence[str] | None = None,
    timeout: float | None = None,
) -> Result:
    """Runs code as agents ask for it. The context is in the workspace as ``context.json``."""
    return run(code, **_as_asked(language, context, explicit_dependencies, timeout))


async def aexecute_code(
    code: str,
    language: str = "python",
    context: Mapping[str, Any] | None = None,
    explicit_dependencies: Sequence[str] | None = None,
    timeout: float | None = None,
) -> Result:
    """The same, awaited."""
    return await arun(code, **_as_asked(language, context, explicit_dependencies, timeout))


def _as_asked(
    language: str,
    context: Mapping[str, Any] | None,
    explicit_dependencies: Sequence[str] | None,
    timeout: float | None,
) -> RunOptions:
    files = None if context is None else {"context.json": json.dumps(context)}
    return {"language": language, "files": files, "dependencies": explicit_dependencies or None, "timeout": timeout}
