"""Folders as archives. One that comes out of a sandbox is a stranger's: its names are believed only within a folder."""

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

_PIECE = 1 << 16
_IN_MEMORY = 4 << 20
#: Folders in folders.
_DEEPEST = 128
#: What an archive may have beside the bytes of files: names, and whatever it says about them.
_BESIDE = 64 << 20


@dataclass
class Downloaded:
    """What came out of a sandbox."""

    files: int = 0
    bytes: int = 0
    #: Links, and whatever else is neither file nor folder: none of those is made here.
    skipped: list[str] = field(default_factory=list)


def opened(source: Path) -> tuple[IO[bytes], str | None]:
    """A file and its permissions; of a folder an archive, under names relative to it. Links are kept, not followed."""
    if not source.is_dir():
        return source.open("rb"), f"{source.stat().st_mode & 0o777:04o}"
    spool: IO[bytes] = SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 (the caller closes it)
    with tarfile.open(fileobj=spool, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(source, arcname=".", filter=_plain)
    return spool, None


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without owners, which mean nothing inside, and without sockets and devices."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry if entry.isfile() or entry.isdir() or entry.issym() or entry.islnk() else None


def pieces_of(file: IO[bytes]) -> Iterator[bytes]:
    """All of a file, from its beginning."""
    file.seek(0)
    while piece := file.read(_PIECE):
        yield piece


def unpack(pieces: Iterable[bytes], target: Path, most: int) -> Downloaded:
    """Unpacks into a folder, which is made where there is none. More than ``most`` bytes are refused."""
    target.mkdir(parents=True, exist_ok=True)
    try:
        return _unpack(bounded(pieces, archive_bound(most)), target, most)
    except tarfile.TarError as error:
        raise ValueError(f"the sandbox's archive cannot be read: {error}") from error


def _unpack(pieces: Iterable[bytes], target: Path, most: int) -> Downloaded:
    done = Downloaded()
    with tarfile.open(fileobj=io.BufferedReader(_Pieces(pieces)), mode="r|") as archive:
        for entry in archive:
            parts = _parts(entry.name)
            if entry.isdir():
                _folder(target, parts)
            elif entry.isfile() and parts:
                done.bytes += entry.size
                check(done.bytes, most)
                source = archive.extractfile(entry)
                assert source is not None
                _write(_folder(target, parts[:-1]) / parts[-1], source, executable=bool(entry.mode & 0o100))
                done.files += 1
            else:
                done.skipped.append(entry.name)
    return done


def save(pieces: Iterable[bytes], target: Path, most: int) -> Downloaded:
    """Writes one file."""
    with target.open("wb") as file:
        for piece in bounded(pieces, most):
            file.write(piece)
        return Downloaded(files=1, bytes=file.tell())


def archive_bound(most: int) -> int:
    """How long the archive of a folder with so many bytes may be."""
    return most + _BESIDE


def bounded(pieces: Iterable[bytes], most: int) -> Iterator[bytes]:
    seen = 0
    for piece in pieces:
        seen += len(piece)
        check(seen, most)
        yield piece


def check(count: int, most: int) -> None:
    if count > most:
        raise ValueError(f"the folder has more than {most} bytes; max_bytes=… takes more")


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name or len(parts) > _DEEPEST:
        raise ValueError(f"the sandbox's archive has a name that leads out of the folder: {name!r}")
    return parts


def _folder(target: Path, parts: list[str]) -> Path:
    """Makes folders one in the other. What is there already has to be one, and no link to one."""
    for part in parts:
        target /= part
        try:
            target.mkdir()
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(target).st_mode):
                raise ValueError(f"{target} is in the way, and is no folder") from None
    return target


def _write(path: Path, source: IO[bytes], *, executable: bool) -> None:
    """Writes anew what is a plain file or is not there; a link is not followed, and a pipe not waited for."""
    if os.path.lexists(path):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise ValueError(f"{path} is in the way, and is no plain file")
        path.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(path, flags, 0o777 if executable else 0o666), "wb") as file:
        while piece := source.read(_PIECE):
            file.write(piece)


class _Pieces(io.RawIOBase):
    """Pieces as a file that is read from beginning to end."""

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
