"""Packs and unpacks folders as tar archives. Archives from a sandbox are untrusted: no entry may leave the folder."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO

_CHUNK_BYTES = 1 << 16
#: Larger archives are spooled to disk.
_IN_MEMORY_BYTES = 4 << 20
#: Maximum depth of nested folders.
_MAX_DEPTH = 128
#: Maximum size of names and metadata in an archive, in addition to file contents.
_METADATA_BYTES = 64 << 20


@dataclass
class Downloaded:
    """Summary of a download from a sandbox."""

    files: int = 0
    bytes: int = 0
    #: Entries that were not created because they are neither files nor folders, such as links.
    skipped: list[str] = field(default_factory=list)


def open_source(source: Path) -> tuple[IO[bytes], str | None]:
    """Opens a file and returns its mode; packs a folder into an archive. Links are stored as links, not followed."""
    if not source.is_dir():
        return source.open("rb"), f"{source.stat().st_mode & 0o777:04o}"
    spool: IO[bytes] = SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115 (the caller closes it)
    with tarfile.open(fileobj=spool, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(source, arcname=".", filter=_portable)
    return spool, None


def _portable(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Clears owners, which mean nothing inside, and skips sockets and devices."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry if entry.isfile() or entry.isdir() or entry.issym() or entry.islnk() else None


def read_chunks(file: IO[bytes]) -> Iterator[bytes]:
    """Yields the whole file, from its beginning."""
    file.seek(0)
    while piece := file.read(_CHUNK_BYTES):
        yield piece


def unpack(pieces: Iterable[bytes], target: Path, max_bytes: int) -> Downloaded:
    """Unpacks an archive into a folder, which is created if missing. Refuses more than ``max_bytes``."""
    target.mkdir(parents=True, exist_ok=True)
    try:
        return _unpack(bounded(pieces, max_archive_bytes(max_bytes)), target, max_bytes)
    except tarfile.TarError as error:
        raise ValueError(f"the sandbox's archive cannot be read: {error}") from error


def _unpack(pieces: Iterable[bytes], target: Path, max_bytes: int) -> Downloaded:
    done = Downloaded()
    with tarfile.open(fileobj=io.BufferedReader(_PiecesReader(pieces)), mode="r|") as archive:
        for entry in archive:
            parts = _parts(entry.name)
            if entry.isdir():
                _folder(target, parts)
            elif entry.isfile() and parts:
                done.bytes += entry.size
                check_size(done.bytes, max_bytes)
                source = archive.extractfile(entry)
                assert source is not None
                _write(_folder(target, parts[:-1]) / parts[-1], source, executable=bool(entry.mode & 0o100))
                done.files += 1
            else:
                done.skipped.append(entry.name)
    return done


def save(pieces: Iterable[bytes], target: Path, max_bytes: int) -> Downloaded:
    """Writes one file. Refuses more than ``max_bytes``."""
    with target.open("wb") as file:
        for piece in bounded(pieces, max_bytes):
            file.write(piece)
        return Downloaded(files=1, bytes=file.tell())


def max_archive_bytes(max_bytes: int) -> int:
    """Returns the maximum size of an archive whose files have ``max_bytes`` in total."""
    return max_bytes + _METADATA_BYTES


def bounded(pieces: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    seen = 0
    for piece in pieces:
        seen += len(piece)
        check_size(seen, max_bytes)
        yield piece


def check_size(count: int, max_bytes: int) -> None:
    if count > max_bytes:
        raise ValueError(f"the download has more than {max_bytes} bytes; set max_bytes=… to allow more")


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name or len(parts) > _MAX_DEPTH:
        raise ValueError(f"the sandbox's archive has an invalid path: {name!r}")
    return parts


def _folder(target: Path, parts: list[str]) -> Path:
    """Creates nested folders. Existing ones must be real folders, not links."""
    for part in parts:
        target /= part
        try:
            target.mkdir()
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(target).st_mode):
                raise ValueError(f"{target} already exists and is not a folder") from None
    return target


def _write(path: Path, source: IO[bytes], *, executable: bool) -> None:
    """Creates a file, replacing a regular one. Does not follow links or open pipes."""
    if os.path.lexists(path):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise ValueError(f"{path} already exists and is not a regular file")
        path.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(path, flags, 0o777 if executable else 0o666), "wb") as file:
        while piece := source.read(_CHUNK_BYTES):
            file.write(piece)


class _PiecesReader(io.RawIOBase):
    """Reads an iterator of bytes as a file."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
