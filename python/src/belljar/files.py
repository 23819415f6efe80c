"""Files of a sandbox. Paths are absolute or relative to ``/workspace``, and are resolved inside the sandbox."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from tempfile import SpooledTemporaryFile

from . import _calls
from ._archive import Downloaded, check_size, max_archive_bytes, open_source, read_chunks, save, unpack
from ._events import Change, Events
from ._http import AsyncTransport, Transport
from .states import FileInfo
from .streams import AsyncStream, Stream

_MAX_DOWNLOAD_BYTES = 256 << 20
#: Larger downloads are spooled to disk.
_IN_MEMORY_BYTES = 4 << 20


def _bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _permissions(mode: int | None) -> str | None:
    return None if mode is None else f"{mode:04o}"


class Files:
    """The files of a sandbox."""

    def __init__(self, transport: Transport, sandbox: str) -> None:
        self._transport = transport
        self._sandbox = sandbox

    def read(self, path: str) -> bytes:
        return self._transport.send(_calls.read_bytes(self._sandbox, path))

    def read_text(self, path: str) -> str:
        return self.read(path).decode()

    def write(self, path: str, data: str | bytes, *, mode: int | None = None) -> None:
        """Writes a whole file, and creates missing parent folders."""
        self._transport.send(_calls.write_bytes(self._sandbox, path, _bytes(data), _permissions(mode)))

    def list(self, path: str = ".") -> list[FileInfo]:
        """Lists a folder, sorted by name."""
        found, cursor = self._transport.send(_calls.list_files(self._sandbox, path, None))
        while cursor is not None:
            more, cursor = self._transport.send(_calls.list_files(self._sandbox, path, cursor))
            found += more
        return found

    def stat(self, path: str) -> FileInfo:
        return self._transport.send(_calls.stat(self._sandbox, path))

    def make_folder(self, path: str) -> None:
        self._transport.send(_calls.make_folder(self._sandbox, path))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        self._transport.send(_calls.remove(self._sandbox, path, recursive))

    def move(self, source: str, target: str, *, replace: bool = False) -> None:
        self._transport.send(_calls.move(self._sandbox, source, target, replace))

    def watch(self, path: str = ".", *, recursive: bool = False) -> Stream[Change, None]:
        """Streams changes in a folder as they happen."""
        return Stream(self._transport, _calls.watch(self._sandbox, path, recursive), Events("", lambda _: None))

    def upload(self, source: str | os.PathLike[str], path: str) -> None:
        """Copies a local file to a path, or the contents of a local folder into a folder."""
        file, mode = open_source(Path(source))
        with file:
            if mode is None:
                self.make_folder(path)
                self._transport.send(_calls.unpack(self._sandbox, path, partial(read_chunks, file)))
            else:
                self._transport.send(_calls.write_pieces(self._sandbox, path, partial(read_chunks, file), mode))

    def download(
        self, path: str, target: str | os.PathLike[str], *, max_bytes: int = _MAX_DOWNLOAD_BYTES
    ) -> Downloaded:
        """Copies a file to a local path, or the contents of a folder into a local folder. Creates no links."""
        if self.stat(path).is_directory:
            return unpack(self._transport.bytes(_calls.pack(self._sandbox, path)), Path(target), max_bytes)
        return save(self._transport.bytes(_calls.read_bytes(self._sandbox, path)), Path(target), max_bytes)


class AsyncFiles:
    """Async version of :class:`Files`."""

    def __init__(self, transport: AsyncTransport, sandbox: str) -> None:
        self._transport = transport
        self._sandbox = sandbox

    async def read(self, path: str) -> bytes:
        return await self._transport.send(_calls.read_bytes(self._sandbox, path))

    async def read_text(self, path: str) -> str:
        return (await self.read(path)).decode()

    async def write(self, path: str, data: str | bytes, *, mode: int | None = None) -> None:
        await self._transport.send(_calls.write_bytes(self._sandbox, path, _bytes(data), _permissions(mode)))

    async def list(self, path: str = ".") -> list[FileInfo]:
        found, cursor = await self._transport.send(_calls.list_files(self._sandbox, path, None))
        while cursor is not None:
            more, cursor = await self._transport.send(_calls.list_files(self._sandbox, path, cursor))
            found += more
        return found

    async def stat(self, path: str) -> FileInfo:
        return await self._transport.send(_calls.stat(self._sandbox, path))

    async def make_folder(self, path: str) -> None:
        await self._transport.send(_calls.make_folder(self._sandbox, path))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        await self._transport.send(_calls.remove(self._sandbox, path, recursive))

    async def move(self, source: str, target: str, *, replace: bool = False) -> None:
        await self._transport.send(_calls.move(self._sandbox, source, target, replace))

    def watch(self, path: str = ".", *, recursive: bool = False) -> AsyncStream[Change, None]:
        return AsyncStream(self._transport, _calls.watch(self._sandbox, path, recursive), Events("", lambda _: None))

    async def upload(self, source: str | os.PathLike[str], path: str) -> None:
        file, mode = await asyncio.to_thread(open_source, Path(source))
        with file:
            if mode is None:
                await self.make_folder(path)
                await self._transport.send(_calls.unpack(self._sandbox, path, partial(read_chunks, file)))
            else:
                await self._transport.send(_calls.write_pieces(self._sandbox, path, partial(read_chunks, file), mode))

    async def download(
        self, path: str, target: str | os.PathLike[str], *, max_bytes: int = _MAX_DOWNLOAD_BYTES
    ) -> Downloaded:
        folder = (await self.stat(path)).is_directory
        call = _calls.pack(self._sandbox, path) if folder else _calls.read_bytes(self._sandbox, path)
        with SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as spool:
            async for piece in self._transport.bytes(call):
                spool.write(piece)
                check_size(spool.tell(), max_archive_bytes(max_bytes))
            # Writing files blocks, so a thread does it.
            work = unpack if folder else save
            return await asyncio.to_thread(work, read_chunks(spool), Path(target), max_bytes)
