"""Clients for a server, named or private, that run code in fresh sandboxes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from . import _calls, _inputs, _server
from ._events import Events, Output
from ._http import AsyncTransport, Transport
from ._inputs import InputResults
from ._request import Json, RunOptions, SandboxOptions, owner_metadata, run_request, sandbox_request, with_metadata
from .errors import BelljarError
from .result import Artifact, Result, read_result
from .states import SandboxInfo, Snapshot
from .streams import AsyncStream, Stream

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

C = TypeVar("C")

#: How often a call is retried.
_RETRIES = 4


def _finder(server: str | None, api_key: str | None) -> Callable[[], _server.Server]:
    """Returns a function that finds the named server, or the private one of the calling process."""
    named = _server.named(server, api_key)
    return _server.private if named is None else lambda: named


def own(client: C | None, kind: Callable[[], C]) -> tuple[C, bool]:
    """Returns a client, and whether the caller owns it and must close it."""
    return (kind(), True) if client is None else (client, False)


class _Requests:
    """Shared by both clients: builds requests with the metadata of the client."""

    def __init__(self, agent_id: str | None, user_id: str | None) -> None:
        self._metadata = owner_metadata(agent_id, user_id)

    def _run_request(self, code: str | bytes | None, options: RunOptions) -> Json:
        return run_request(code, **with_metadata(self._metadata, options))

    def _sandbox_request(self, options: SandboxOptions) -> Json:
        return sandbox_request(**with_metadata(self._metadata, options))


class Client(_Requests):
    """Calls a server: the one at ``server``, else the one in ``BELLJAR_SERVER``, else a private one of this process.

    Any number of threads can share a client. A request is retried automatically if it is certain that nothing has run;
    if something may have run, only with an ``idempotency_key``. Without such a key, a run is canceled when its caller
    disconnects.

    ``agent_id`` and ``user_id`` are in the metadata of everything that it runs and of every sandbox that it opens.
    """

    def __init__(
        self,
        server: str | None = None,
        api_key: str | None = None,
        *,
        retries: int = _RETRIES,
        agent_id: str | None = None,
        user_id: str | None = None,
    ) -> None:
        super().__init__(agent_id, user_id)
        self._transport = Transport(_finder(server, api_key), retries)

    def run(
        self,
        code: str | bytes | None = None,
        *,
        check: bool = False,
        idempotency_key: str | None = None,
        **options: Unpack[RunOptions],
    ) -> Result:
        """Runs code, or ``command=…``, in a fresh sandbox. A failing program raises only if ``check`` is set."""
        result = self._transport.send(_calls.run(self._run_request(code, options), key=idempotency_key))
        return result.raise_for_status() if check else result

    def stream(self, code: str | bytes | None = None, **options: Unpack[RunOptions]) -> Stream[Output, Result]:
        """Runs code and yields its output as it is written."""
        return Stream(self._transport, _calls.stream(self._run_request(code, options)), Events("result", read_result))

    def map(
        self,
        code: str | bytes,
        argument_sets: Iterable[Mapping[str, Any]],
        *,
        jobs: int = 8,
        return_exceptions: bool = False,
        **options: Unpack[RunOptions],
    ) -> list[Result | BelljarError]:
        """Calls the code's ``main`` with each set of arguments, at most ``jobs`` at once; returns the results in order.

        The server reads, checks and compiles the code once for up to 500 calls.
        """
        request = self._run_request(code, options)
        results: list[Result | BelljarError] = []
        for inputs in _inputs.groups(argument_sets):
            collected = InputResults(len(inputs), return_exceptions)
            error: BelljarError | None = None
            # Closing the response cancels what has not run.
            with closing(self._transport.bytes(_inputs.call(request, inputs, jobs))) as body:
                try:
                    for piece in body:
                        collected.feed(piece)
                except BelljarError as failed:
                    error = failed
            results += collected.in_order(error)
        return results

    def submit(
        self, code: str | bytes | None = None, *, idempotency_key: str | None = None, **options: Unpack[RunOptions]
    ) -> str:
        """Starts an execution without waiting for it, and returns its id."""
        return self._transport.send(_calls.submit(self._run_request(code, options), key=idempotency_key))

    def get(self, id: str) -> Result:
        """Returns an execution: its result, or its current state."""
        return self._transport.send(_calls.get(id))

    def follow(self, id: str) -> Stream[Output, Result]:
        """Streams the output of an execution from the beginning, then its result."""
        return Stream(self._transport, _calls.follow(id), Events("result", read_result))

    def download(self, artifact: Artifact) -> Artifact:
        """Returns an artifact with its content, which it fetches if the artifact has a URL."""
        return self._transport.send(_calls.download(artifact)) if artifact.content_base64 is None else artifact

    def cancel(self, id: str) -> Result:
        return self._transport.send(_calls.cancel(id))

    def delete_execution(self, id: str) -> None:
        """Deletes an execution that has ended, with its result. Cancels one that has not, and keeps its result."""
        self._transport.send(_calls.delete_execution(id))

    def sandboxes(self) -> list[SandboxInfo]:
        """Lists open sandboxes, newest first."""
        found, cursor = self._transport.send(_calls.sandboxes(None))
        while cursor is not None:
            more, cursor = self._transport.send(_calls.sandboxes(cursor))
            found += more
        return found

    def snapshots(self) -> list[Snapshot]:
        return self._transport.send(_calls.snapshots())

    def delete_snapshot(self, id: str) -> None:
        self._transport.send(_calls.delete_snapshot(id))

    def close(self) -> None:
        """Closes the connections. A private server keeps running until the process ends."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_Requests):
    """Async version of :class:`Client`. Belongs to one event loop."""

    def __init__(
        self,
        server: str | None = None,
        api_key: str | None = None,
        *,
        retries: int = _RETRIES,
        agent_id: str | None = None,
        user_id: str | None = None,
    ) -> None:
        super().__init__(agent_id, user_id)
        self._transport = AsyncTransport(_finder(server, api_key), retries)

    async def run(
        self,
        code: str | bytes | None = None,
        *,
        check: bool = False,
        idempotency_key: str | None = None,
        **options: Unpack[RunOptions],
    ) -> Result:
        result = await self._transport.send(_calls.run(self._run_request(code, options), key=idempotency_key))
        return result.raise_for_status() if check else result

    def stream(self, code: str | bytes | None = None, **options: Unpack[RunOptions]) -> AsyncStream[Output, Result]:
        return AsyncStream(
            self._transport, _calls.stream(self._run_request(code, options)), Events("result", read_result)
        )

    async def map(
        self,
        code: str | bytes,
        argument_sets: Iterable[Mapping[str, Any]],
        *,
        jobs: int = 8,
        return_exceptions: bool = False,
        **options: Unpack[RunOptions],
    ) -> list[Result | BelljarError]:
        request = self._run_request(code, options)
        results: list[Result | BelljarError] = []
        for inputs in _inputs.groups(argument_sets):
            collected = InputResults(len(inputs), return_exceptions)
            error: BelljarError | None = None
            body = self._transport.bytes(_inputs.call(request, inputs, jobs))
            try:
                async for piece in body:
                    collected.feed(piece)
            except BelljarError as failed:
                error = failed
            finally:
                await body.aclose()
            results += collected.in_order(error)
        return results

    async def submit(
        self, code: str | bytes | None = None, *, idempotency_key: str | None = None, **options: Unpack[RunOptions]
    ) -> str:
        return await self._transport.send(_calls.submit(self._run_request(code, options), key=idempotency_key))

    async def get(self, id: str) -> Result:
        return await self._transport.send(_calls.get(id))

    def follow(self, id: str) -> AsyncStream[Output, Result]:
        return AsyncStream(self._transport, _calls.follow(id), Events("result", read_result))

    async def download(self, artifact: Artifact) -> Artifact:
        """Returns an artifact with its content, which it fetches if the artifact has a URL."""
        return await self._transport.send(_calls.download(artifact)) if artifact.content_base64 is None else artifact

    async def cancel(self, id: str) -> Result:
        return await self._transport.send(_calls.cancel(id))

    async def delete_execution(self, id: str) -> None:
        """Deletes an execution that has ended, with its result. Cancels one that has not, and keeps its result."""
        await self._transport.send(_calls.delete_execution(id))

    async def sandboxes(self) -> list[SandboxInfo]:
        found, cursor = await self._transport.send(_calls.sandboxes(None))
        while cursor is not None:
            more, cursor = await self._transport.send(_calls.sandboxes(cursor))
            found += more
        return found

    async def snapshots(self) -> list[Snapshot]:
        return await self._transport.send(_calls.snapshots())

    async def delete_snapshot(self, id: str) -> None:
        await self._transport.send(_calls.delete_snapshot(id))

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
