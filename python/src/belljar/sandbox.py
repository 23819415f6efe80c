"""Long-lived sandboxes: opened once, used until they are closed, or expire because they are not used."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx

from . import _calls
from ._events import Events, Output
from ._http import AsyncTransport, Call, Transport
from ._request import CommandLine, CommandOptions, RunOptions, SandboxOptions, command_request
from .client import AsyncClient, Client, own
from .commands import AsyncCommand, AsyncCommandStream, Command, CommandStream, command_events
from .errors import NotFound, SandboxEnded
from .files import AsyncFiles, Files
from .result import Result, read_result
from .shell import AsyncShell, Shell, terminal_request
from .states import CommandInfo, CommandResult, SandboxInfo, Snapshot, Stats
from .streams import AsyncStream, Stream

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class Port:
    """A port of a sandbox, reachable through the server."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        #: The address, ending with a slash. Requests must send ``headers``.
        self.url = url
        self.headers = dict(headers)

    def __repr__(self) -> str:
        return f"<Port {self.url}>"


def _unchanged(response: httpx.Response) -> httpx.Response:
    return response


def _port_request(sandbox: str, method: str, port: int, path: str, options: Mapping[str, Any]) -> Call[httpx.Response]:
    return Call(method, _calls.port_path(sandbox, port, path), _unchanged, waits=True, proxied=True, **options)


def _port(server: Any, sandbox: str, port: int) -> Port:
    headers = {"authorization": f"Bearer {server.key}"} if server.key else {}
    return Port(server.url + _calls.port_path(sandbox, port, ""), headers)


class Sandbox:
    """A sandbox. ``with Sandbox() as box`` opens and closes one; ``Sandbox.connect(id)`` uses an open one."""

    def __init__(self, *, client: Client | None = None, **options: Unpack[SandboxOptions]) -> None:
        self._client, self._owned = own(client, Client)
        self._attach(_calls.open_sandbox(self._client._sandbox_request(options)))

    @classmethod
    def connect(cls, id: str, *, client: Client | None = None) -> Self:
        """Uses a sandbox that is already open. Leaving a ``with`` block closes it too."""
        box = cls.__new__(cls)
        box._client, box._owned = own(client, Client)
        box._attach(_calls.sandbox(id))
        return box

    def _attach(self, call: Call[SandboxInfo]) -> None:
        self._transport: Transport = self._client._transport
        try:
            self.id = self._transport.send(call).id
        except BaseException:
            self._close_client()
            raise
        self.files = Files(self._transport, self.id)

    # ── Code and commands ──

    def run(
        self,
        code: str | bytes | None = None,
        *,
        check: bool = False,
        idempotency_key: str | None = None,
        **options: Unpack[RunOptions],
    ) -> Result:
        """Runs code in the sandbox. Files are kept from one run to the next."""
        request = self._client._run_request(code, options)
        result = self._transport.send(_calls.run(request, key=idempotency_key, sandbox=self.id))
        return result.raise_for_status() if check else result

    def stream(self, code: str | bytes | None = None, **options: Unpack[RunOptions]) -> Stream[Output, Result]:
        """Runs code in the sandbox and yields its output as it is written."""
        call = _calls.stream(self._client._run_request(code, options), sandbox=self.id)
        return Stream(self._transport, call, Events("result", read_result))

    def command(self, command: CommandLine, *, check: bool = False, **options: Unpack[CommandOptions]) -> CommandResult:
        """Runs a command and waits until it ends. A string is a shell command, a list a program with arguments."""
        result = self._transport.send(_calls.command(self.id, command_request(command, **options)))
        return result.raise_for_status() if check else result

    def stream_command(self, command: CommandLine, **options: Unpack[CommandOptions]) -> CommandStream:
        """Runs a command and yields its output as it is written. Closing the stream kills the command."""
        call = _calls.stream_command(self.id, command_request(command, **options))
        return Stream(self._transport, call, command_events())

    def start(self, command: CommandLine, **options: Unpack[CommandOptions]) -> Command:
        """Starts a command in the background."""
        started = self._transport.send(_calls.start_command(self.id, command_request(command, **options)))
        return Command(self._transport, self.id, started)

    def commands(self) -> list[CommandInfo]:
        """Lists commands, running and ended ones, oldest first."""
        return self._transport.send(_calls.commands(self.id))

    def shell(self, command: CommandLine = "exec bash", *, rows: int = 24, columns: int = 80) -> Shell:
        """Opens a terminal. Needs ``pip install belljar[shell]``."""
        request = terminal_request(command, rows, columns)
        started = self._transport.send(_calls.start_command(self.id, request))
        return Shell(self._transport.server(), self.id, started.id)

    # ── Ports ──

    def request(self, method: str, port: int, path: str = "/", **options: Any) -> httpx.Response:
        """Sends an HTTP request to a port of the sandbox. Returns the response whatever its status."""
        return self._transport.send(_port_request(self.id, method, port, path, options))

    def port(self, port: int) -> Port:
        """Returns the address of a port of the sandbox, for other clients."""
        return _port(self._transport.server(), self.id, port)

    # ── State and lifetime ──

    def info(self) -> SandboxInfo:
        return self._transport.send(_calls.sandbox(self.id))

    def stats(self) -> Stats:
        return self._transport.send(_calls.stats(self.id))

    def pause(self) -> SandboxInfo:
        """Freezes all processes. A paused sandbox does not expire for lack of use, but at the end of its life."""
        return self._transport.send(_calls.pause(self.id))

    def resume(self) -> SandboxInfo:
        return self._transport.send(_calls.resume(self.id))

    def extend(self, seconds: float) -> SandboxInfo:
        """Sets how many seconds the sandbox may be unused."""
        return self._transport.send(_calls.extend(self.id, seconds))

    def snapshot(self, label: str | None = None) -> Snapshot:
        """Saves the files; ``Sandbox(snapshot=….id)`` opens another sandbox with them."""
        return self._transport.send(_calls.snapshot(self.id, label))

    def close(self) -> None:
        """Ends the sandbox and everything in it. Does nothing if it has already ended."""
        try:
            with suppress(SandboxEnded, NotFound):
                self._transport.send(_calls.close_sandbox(self.id))
        finally:
            self._close_client()

    def _close_client(self) -> None:
        if self._owned:
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Sandbox {self.id}>"


class AsyncSandbox:
    """Async version of :class:`Sandbox`: ``async with AsyncSandbox() as box``."""

    def __init__(self, *, client: AsyncClient | None = None, **options: Unpack[SandboxOptions]) -> None:
        self._client, self._owned = own(client, AsyncClient)
        self._transport: AsyncTransport = self._client._transport
        self._opening = _calls.open_sandbox(self._client._sandbox_request(options))

    @classmethod
    def connect(cls, id: str, *, client: AsyncClient | None = None) -> Self:
        box = cls(client=client)
        box._opening = _calls.sandbox(id)
        return box

    async def open(self) -> Self:
        """Opens the sandbox; ``async with`` does this automatically."""
        try:
            self.id = (await self._transport.send(self._opening)).id
        except BaseException:
            await self._close_client()
            raise
        self.files = AsyncFiles(self._transport, self.id)
        return self

    async def run(
        self,
        code: str | bytes | None = None,
        *,
        check: bool = False,
        idempotency_key: str | None = None,
        **options: Unpack[RunOptions],
    ) -> Result:
        request = self._client._run_request(code, options)
        result = await self._transport.send(_calls.run(request, key=idempotency_key, sandbox=self.id))
        return result.raise_for_status() if check else result

    def stream(self, code: str | bytes | None = None, **options: Unpack[RunOptions]) -> AsyncStream[Output, Result]:
        call = _calls.stream(self._client._run_request(code, options), sandbox=self.id)
        return AsyncStream(self._transport, call, Events("result", read_result))

    async def command(
        self, command: CommandLine, *, check: bool = False, **options: Unpack[CommandOptions]
    ) -> CommandResult:
        result = await self._transport.send(_calls.command(self.id, command_request(command, **options)))
        return result.raise_for_status() if check else result

    def stream_command(self, command: CommandLine, **options: Unpack[CommandOptions]) -> AsyncCommandStream:
        call = _calls.stream_command(self.id, command_request(command, **options))
        return AsyncStream(self._transport, call, command_events())

    async def start(self, command: CommandLine, **options: Unpack[CommandOptions]) -> AsyncCommand:
        started = await self._transport.send(_calls.start_command(self.id, command_request(command, **options)))
        return AsyncCommand(self._transport, self.id, started)

    async def commands(self) -> list[CommandInfo]:
        return await self._transport.send(_calls.commands(self.id))

    async def shell(self, command: CommandLine = "exec bash", *, rows: int = 24, columns: int = 80) -> AsyncShell:
        request = terminal_request(command, rows, columns)
        started = await self._transport.send(_calls.start_command(self.id, request))
        return await AsyncShell.attach(await self._transport.server(), self.id, started.id)

    async def request(self, method: str, port: int, path: str = "/", **options: Any) -> httpx.Response:
        return await self._transport.send(_port_request(self.id, method, port, path, options))

    async def port(self, port: int) -> Port:
        return _port(await self._transport.server(), self.id, port)

    async def info(self) -> SandboxInfo:
        return await self._transport.send(_calls.sandbox(self.id))

    async def stats(self) -> Stats:
        return await self._transport.send(_calls.stats(self.id))

    async def pause(self) -> SandboxInfo:
        return await self._transport.send(_calls.pause(self.id))

    async def resume(self) -> SandboxInfo:
        return await self._transport.send(_calls.resume(self.id))

    async def extend(self, seconds: float) -> SandboxInfo:
        return await self._transport.send(_calls.extend(self.id, seconds))

    async def snapshot(self, label: str | None = None) -> Snapshot:
        return await self._transport.send(_calls.snapshot(self.id, label))

    async def close(self) -> None:
        try:
            with suppress(SandboxEnded, NotFound):
                await self._transport.send(_calls.close_sandbox(self.id))
        finally:
            await self._close_client()

    async def _close_client(self) -> None:
        if self._owned:
            await self._client.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncSandbox {getattr(self, 'id', '(not open)')}>"
