"""A local folder that sandboxed programs may change, and nothing else on this machine.

Servers do not accept host folders in requests, so this uses the command line: ``belljar run --workspace FOLDER``.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import stat
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from . import _json
from ._binary import find_binary
from ._failures import failure
from ._request import CommandLine, Network, Size, network_spec, size, words
from .errors import InvalidRequest, NotStarted
from .result import Result, read_result

if TYPE_CHECKING:
    from typing_extensions import Self

_FLAGS = {"r": os.O_RDONLY, "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND}
_EMPTY = ("/bin/sh", "-c", "chmod -R u+rwX . && find . -mindepth 1 -delete")


class Playground:
    """A folder, created if missing, that programs may change. They can change nothing else on this machine.

    ``image`` names the root file system, such as ``python:3.12-slim``; without one, programs see the host's programs.
    ``install`` lists packages that every program has. Both are there when this returns, so that no run waits for them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        image: str | os.PathLike[str] | None = None,
        install: Sequence[str] = (),
    ) -> None:
        if isinstance(install, str):
            raise ValueError(
                "install: must be a list of packages, such as ['numpy', 'npm:lodash']; for Debian packages, build an "
                "image: belljar image build --apt git"
            )
        self.path = Path(path).resolve()
        self.path.mkdir(parents=True, exist_ok=True)
        #: Whether the folder contained files before.
        self.had_files = any(self.path.iterdir())
        self._setup = _flags(image=str(Path(image).resolve()) if isinstance(image, os.PathLike) else image)
        self._setup += [f"--dep={name}" for name in install]
        if self._setup:
            self._set_up()

    def _set_up(self) -> None:
        """Pulls the image and installs the packages, by running a program that does nothing."""
        try:
            self._belljar([*self._setup, "--", "true"])
        except InvalidRequest as error:
            # An image need not have that program, which is started last.
            if not error.args[0].startswith("command: execute "):
                raise

    def run(
        self,
        code: str | bytes | Sequence[str] | None = None,
        *,
        language: str = "python",
        command: CommandLine | None = None,
        arguments: Mapping[str, Any] | None = None,
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        dependencies: Sequence[str] = (),
        timeout: float | None = None,
        timeout_seconds: float | None = None,
        memory: Size | None = None,
        cpus: float | None = None,
        processes: int | None = None,
        network: Network | None = None,
        profile: str | None = None,
        policy: str | None = None,
        check: bool = False,
    ) -> Result:
        """Runs code, or a command, with this folder as its workspace.

        A list is a program with its arguments, and no shell is involved: ``run(["wc", "-l", "a.txt"])``. The result
        unpacks like a tuple: ``stdout, stderr, exit_code = …``. ``timeout_seconds`` is another name of ``timeout``.
        """
        program, source = _program(code, language, command)
        _json.check("arguments", arguments)
        flags = self._setup + _flags(
            args=None if arguments is None else json.dumps(arguments),
            timeout=_timeout(timeout, timeout_seconds),
            memory=size(memory),
            cpus=cpus,
            processes=processes,
            network=_network(network),
            profile=profile,
            policy=policy,
        )
        flags += [f"--dep={name}" for name in dependencies]
        # Never through the environment of this process, where LD_PRELOAD, for example, would affect belljar itself.
        flags += [f"--env={name}={value}" for name, value in (env or {}).items()]
        with tempfile.TemporaryDirectory(prefix="belljar-") as scratch:
            if stdin is not None:
                Path(scratch, "stdin").write_bytes(_bytes(stdin))
                flags.append(f"--stdin={scratch}/stdin")
            result = self._belljar([*flags, *program], source)
        return result.raise_for_status() if check else result

    async def arun(self, code: str | bytes | Sequence[str] | None = None, **options: Any) -> Result:
        """Async version of :meth:`run`, with the same options."""
        return await asyncio.to_thread(lambda: self.run(code, **options))

    def _belljar(self, arguments: list[str], code: bytes = b"") -> Result:
        command = [find_binary(), "run", "--json", f"--workspace={self.path}", *arguments]
        environment = {name: value for name, value in os.environ.items() if name != "BELLJAR_SERVER"}
        done = subprocess.run(command, input=code, capture_output=True, env=environment, check=False)
        try:
            answer = _json.loads(done.stdout)
        except ValueError:
            raise NotStarted(f"belljar run: {done.stderr.decode(errors='replace').strip()}") from None
        if "error" in answer and "id" not in answer:
            raise failure(answer)
        return read_result(answer)

    def open(self, path: str, mode: str = "r", *, encoding: str = "utf-8") -> IO[Any]:
        """Opens a regular file like the built-in ``open``, without following links that a program may have left."""
        kind, binary = mode.replace("b", "").replace("t", ""), "b" in mode
        if kind not in _FLAGS:
            raise ValueError("mode: must be 'r', 'w' or 'a', with 'b' for bytes")
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if path.startswith("/") or ".." in parts or not parts:
            raise ValueError(f"{path!r} is not a path in the playground; use a relative path without '..'")
        # O_NONBLOCK keeps a pipe from blocking the open.
        file = _descend(self.path, parts, _FLAGS[kind] | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise ValueError(f"{path!r} is not a regular file")
        raw = os.fdopen(file, {"r": "rb", "w": "wb", "a": "ab"}[kind])
        return raw if binary else io.TextIOWrapper(raw, encoding=encoding)

    def clean(self, *, everything: bool = False) -> None:
        """Empties the folder from inside a sandbox. Refuses if it had files before, unless ``everything`` is set."""
        if self.had_files and not everything:
            raise ValueError(f"{self.path} had files before; clean(everything=True) removes them too")
        # Not with the image of this playground, which may lack these programs.
        self._belljar(["--", *_EMPTY]).raise_for_status()
        self.had_files = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves the folder unchanged."""

    def __repr__(self) -> str:
        return f"<Playground {self.path}>"


def _descend(folder: Path, parts: list[str], flags: int) -> int:
    """Opens a path one component at a time, following no link."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = below
        return os.open(parts[-1], flags | os.O_NOFOLLOW, 0o666, dir_fd=at)
    finally:
        os.close(at)


def _program(
    code: str | bytes | Sequence[str] | None, language: str, command: CommandLine | None
) -> tuple[list[str], bytes]:
    """Returns the arguments that say what to run, and the code, if there is some."""
    if (code is None) == (command is None):
        raise ValueError("pass either code or command=…, not both")
    if isinstance(code, (str, bytes)):
        return ["-", f"--language={language}"], _bytes(code)
    given = command if code is None else code
    assert given is not None
    program = words(given)
    if not program or not all(isinstance(word, str) for word in program):
        raise ValueError("a program must be a list of text: its name, and its arguments")
    return ["--", *program], b""


def _timeout(timeout: float | None, timeout_seconds: float | None) -> str | None:
    if timeout is not None and timeout_seconds is not None:
        raise ValueError("pass either timeout or timeout_seconds, not both")
    seconds = timeout if timeout_seconds is None else timeout_seconds
    return None if seconds is None else f"{round(seconds * 1_000)}ms"


def _flags(**options: Any) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items() if value is not None]


def _network(network: Network | None) -> str | None:
    spec = network_spec(network)
    if spec is None:
        return None
    return ",".join(spec["hosts"]) if spec["mode"] == "hosts" else str(spec["mode"])


def _bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data
