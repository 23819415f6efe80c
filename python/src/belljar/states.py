"""State of sandboxes, and of their commands, files and snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import _show
from .errors import ProgramFailed, SandboxTimeout
from .result import Finding, Receipt, read_findings, read_receipt


@dataclass(frozen=True)
class SandboxInfo:
    """The state of a sandbox. Times are milliseconds since 1970."""

    id: str
    #: starting, running, halted, paused or ended.
    state: str
    image: str
    profile: str
    created: int
    #: When it expires if it is not used; None while the sandbox is paused, and after its end.
    expires: int | None
    ended_because: str | None
    #: Why nothing runs in it: the reason of its end, or why the server halted it; else None.
    halted: str | None
    receipt: Receipt | None
    metadata: Mapping[str, Any]
    #: The JSON object as received.
    raw: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True)
class Snapshot:
    """Saved files of a sandbox."""

    id: str
    sandbox: str
    label: str
    size_bytes: int
    created: int


@dataclass(frozen=True)
class Stats:
    """Resource usage of a sandbox."""

    cpu_ms: int | None
    memory_bytes: int | None
    peak_memory_bytes: int | None
    processes: int | None
    disk_bytes: int | None
    memory_kills: int
    forks_refused: int
    disk_full: bool
    #: What the sandbox has denied to any of its commands since it was opened.
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class CommandInfo:
    """The state of a command in a sandbox."""

    id: int
    pid: int
    command: str
    terminal: bool
    #: running or ended.
    state: str
    exit_code: int | None
    signal: str | None
    timed_out: bool
    output_bytes: int


@dataclass(frozen=True, repr=False)
class CommandResult:
    """The result of a command that has ended."""

    info: CommandInfo
    stdout: str
    stderr: str
    stdout_truncated: bool
    stderr_truncated: bool
    duration_ms: float
    #: Policy findings, and what the sandbox denied.
    findings: tuple[Finding, ...] = ()

    @property
    def exit_code(self) -> int | None:
        """The exit code; None if a signal or the time limit ended the command."""
        return self.info.exit_code

    @property
    def success(self) -> bool:
        return self.info.exit_code == 0

    @property
    def text(self) -> str:
        """Everything a person or a model needs to read: output, how it failed, and hints."""
        parts = [self.stdout.rstrip("\n"), self.stderr.rstrip("\n"), "" if self.success else f"[{self.ending}]"]
        parts += _show.hints(self.findings, success=self.success)
        return "\n".join(part for part in parts if part)

    @property
    def ending(self) -> str:
        """How the command ended, as text."""
        if self.info.timed_out:
            return "timed out"
        return f"signal {self.info.signal}" if self.info.signal else f"exit code {self.info.exit_code}"

    def raise_for_status(self) -> CommandResult:
        """Returns the result if it succeeded, else raises :class:`ProgramFailed` or :class:`SandboxTimeout`."""
        if self.success:
            return self
        kind = SandboxTimeout if self.info.timed_out else ProgramFailed
        raise kind(f"{self.info.command}: {self.ending}", self)

    def __iter__(self) -> Iterator[Any]:
        """Unpacks like a tuple: ``stdout, stderr, exit_code = …``."""
        return iter((self.stdout, self.stderr, self.exit_code))

    def __repr__(self) -> str:
        return _show.command_line(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return _show.bundle(repr(self), _show.html_of_command(self))


@dataclass(frozen=True)
class FileInfo:
    """A file, folder or link."""

    #: The name in a listing, or the requested path.
    name: str
    #: file, directory, link or other.
    kind: str
    size: int
    #: Octal, such as 0644.
    permissions: str
    #: Milliseconds since 1970.
    modified: int
    #: The target of a link.
    target: str | None

    @property
    def is_directory(self) -> bool:
        return self.kind == "directory"


def read_sandbox(raw: Mapping[str, Any]) -> SandboxInfo:
    return SandboxInfo(
        id=raw["id"],
        state=raw["state"],
        image=raw["image"],
        profile=raw["profile"],
        created=raw["created"],
        expires=raw["expires"],
        ended_because=raw["ended_because"],
        halted=raw["halted"],
        receipt=read_receipt(raw["receipt"]),
        metadata=raw["metadata"],
        raw=raw,
    )


def read_snapshot(raw: Mapping[str, Any]) -> Snapshot:
    return Snapshot(raw["id"], raw["sandbox"], raw["label"], raw["size_bytes"], raw["created"])


def read_stats(raw: Mapping[str, Any]) -> Stats:
    counters = {name: raw[name] for name in Stats.__dataclass_fields__ if name != "findings"}
    return Stats(**counters, findings=read_findings(raw["findings"]))


def read_command(raw: Mapping[str, Any]) -> CommandInfo:
    return CommandInfo(**{name: raw[name] for name in CommandInfo.__dataclass_fields__})


def read_ended(raw: Mapping[str, Any]) -> CommandResult:
    """Reads the result of a command. If it was streamed, the object has no output."""
    return CommandResult(
        info=read_command(raw),
        stdout=raw.get("stdout", ""),
        stderr=raw.get("stderr", ""),
        stdout_truncated=raw.get("stdout_truncated", False),
        stderr_truncated=raw.get("stderr_truncated", False),
        duration_ms=raw.get("duration_ms", 0.0),
        findings=read_findings(raw["findings"]),
    )


def read_file(raw: Mapping[str, Any], name: str) -> FileInfo:
    return FileInfo(name, raw["kind"], raw["size"], raw["permissions"], raw["modified"], raw["target"])
