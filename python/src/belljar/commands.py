"""Commands of a sandbox that go on by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _calls
from ._events import Events, Output
from ._http import AsyncTransport, Transport
from .states import CommandInfo, CommandResult, read_ended
from .streams import AsyncStream, Stream

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

CommandStream: TypeAlias = "Stream[Output, CommandResult]"
AsyncCommandStream: TypeAlias = "AsyncStream[Output, CommandResult]"


def told() -> Events[CommandResult]:
    return Events("ended", read_ended)


class Command:
    """A command in the background."""

    def __init__(self, transport: Transport, sandbox: str, started: CommandInfo) -> None:
        self._transport = transport
        self._sandbox = sandbox
        self.id = started.id
        self.pid = started.pid

    def info(self) -> CommandInfo:
        """How it stands."""
        return self._transport.send(_calls.command_info(self._sandbox, self.id))

    def output(self, start: int = 0) -> CommandStream:
        """What it has written and will write, from a byte on; as many may look as like to."""
        return Stream(self._transport, _calls.command_output(self._sandbox, self.id, start), told())

    def wait(self) -> CommandInfo:
        """Waits for its end."""
        return self.output().result().info

    def write(self, data: str | bytes, *, close: bool = False) -> None:
        """Writes to its standard input, which has to be open (``stdin_open=True``)."""
        self._transport.send(_calls.command_stdin(self._sandbox, self.id, _bytes(data), close))

    def signal(self, signal: str | int = "SIGTERM") -> None:
        """Sends a signal to its process group."""
        self._transport.send(_calls.command_signal(self._sandbox, self.id, signal))

    def kill(self) -> None:
        self.signal("SIGKILL")

    def __repr__(self) -> str:
        return f"<Command {self.id} of {self._sandbox}>"


class AsyncCommand:
    """The same, awaited."""

    def __init__(self, transport: AsyncTransport, sandbox: str, started: CommandInfo) -> None:
        self._transport = transport
        self._sandbox = sandbox
        self.id = started.id
        self.pid = started.pid

    async def info(self) -> CommandInfo:
        return await self._transport.send(_calls.command_info(self._sandbox, self.id))

    def output(self, start: int = 0) -> AsyncCommandStream:
        return AsyncStream(self._transport, _calls.command_output(self._sandbox, self.id, start), told())

    async def wait(self) -> CommandInfo:
        return (await self.output().result()).info

    async def write(self, data: str | bytes, *, close: bool = False) -> None:
        await self._transport.send(_calls.command_stdin(self._sandbox, self.id, _bytes(data), close))

    async def signal(self, signal: str | int = "SIGTERM") -> None:
        await self._transport.send(_calls.command_signal(self._sandbox, self.id, signal))

    async def kill(self) -> None:
        await self.signal("SIGKILL")

    def __repr__(self) -> str:
        return f"<AsyncCommand {self.id} of {self._sandbox}>"


def _bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data
