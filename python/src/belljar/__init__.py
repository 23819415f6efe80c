"""Runs untrusted code in sandboxes.

    >>> import belljar
    >>> belljar.run("print(6 * 7)").stdout
    '42\\n'

Code runs on the server named by ``BELLJAR_SERVER`` and ``BELLJAR_API_KEY``, or else on a private server that ends with
this process.
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
    """Runs code, or ``command=…``, in a fresh sandbox. A failing program raises only if ``check`` is set."""
    with Client() as client:
        return client.run(code, check=check, idempotency_key=idempotency_key, **options)


async def arun(
    code: str | bytes | None = None,
    *,
    check: bool = False,
    idempotency_key: str | None = None,
    **options: Unpack[RunOptions],
) -> Result:
    """Async version of :func:`run`."""
    async with AsyncClient() as client:
        return await client.run(code, check=check, idempotency_key=idempotency_key, **options)


def stream(code: str | bytes | None = None, **options: Unpack[RunOptions]) -> Stream[Output, Result]:
    """Runs code and yields its output as it is written; ``.result()`` returns the final result."""
    call = _calls.stream(run_request(code, **options))
    return Stream(Client()._transport, call, Events("result", read_result), owned=True)


def astream(code: str | bytes | None = None, **options: Unpack[RunOptions]) -> AsyncStream[Output, Result]:
    """Async version of :func:`stream`: ``async for piece in astream(…)``."""
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
    """Calls the code's ``main`` with each set of arguments, at most ``jobs`` at once; returns the results in order."""
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
    """Async version of :func:`map`."""
    async with AsyncClient() as client:
        return await client.map(code, argument_sets, jobs=jobs, return_exceptions=return_exceptions, **options)


def execute_code(
    code: str,
    language: str = "python",
    context: Mapping[str, Any] | None = None,
    explicit_dependencies: Sequence[str] | None = None,
    timeout: float | None = None,
    *,
    arguments: Mapping[str, Any] | None = None,
    agent_id: str | None = None,
    user_id: str | None = None,
) -> Result:
    """Runs code with the parameters that agents commonly use.

    The program reads the context from ``context.json``. With arguments, its ``main`` is called with them, and what that
    returns is the result's ``value``. The ids are in the result's metadata.
    """
    given = _execute_options(language, context, explicit_dependencies, timeout, arguments)
    with Client(agent_id=agent_id, user_id=user_id) as client:
        return client.run(code, **given)


async def aexecute_code(
    code: str,
    language: str = "python",
    context: Mapping[str, Any] | None = None,
    explicit_dependencies: Sequence[str] | None = None,
    timeout: float | None = None,
    *,
    arguments: Mapping[str, Any] | None = None,
    agent_id: str | None = None,
    user_id: str | None = None,
) -> Result:
    """Async version of :func:`execute_code`."""
    given = _execute_options(language, context, explicit_dependencies, timeout, arguments)
    async with AsyncClient(agent_id=agent_id, user_id=user_id) as client:
        return await client.run(code, **given)


def _execute_options(
    language: str,
    context: Mapping[str, Any] | None,
    explicit_dependencies: Sequence[str] | None,
    timeout: float | None,
    arguments: Mapping[str, Any] | None,
) -> RunOptions:
    return {
        "language": language,
        "files": None if context is None else {"context.json": json.dumps(context)},
        "dependencies": explicit_dependencies or None,
        "timeout": timeout,
        "arguments": arguments,
    }
