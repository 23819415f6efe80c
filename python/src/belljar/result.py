"""The result of an execution, the same object from every front end."""

from __future__ import annotations

import base64
import builtins
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import _show
from .errors import BelljarError, Cancelled, CodeRefused, LimitExceeded, ProgramFailed, SandboxTimeout

_FAILURES: dict[str, type[ProgramFailed]] = {
    "timed_out": SandboxTimeout,
    "limit_exceeded": LimitExceeded,
    "refused": CodeRefused,
    "cancelled": Cancelled,
    "interrupted": Cancelled,
}


@dataclass(frozen=True)
class Artifact:
    """A file that the program left below ``./artifacts``."""

    #: Path below ``./artifacts``, such as ``plots/a.png``.
    name: str
    mime_type: str
    size: int
    #: The content, or None if it is at ``url``: then ``client.download(artifact)`` returns the artifact with it.
    content_base64: str | None = field(repr=False)
    #: Where a server has the content, if it is large.
    url: str | None = None

    @property
    def bytes(self) -> builtins.bytes:
        """The content."""
        if self.content_base64 is None:
            raise BelljarError(f"the content of {self.name!r} is on the server: use client.download(artifact)")
        return base64.b64decode(self.content_base64)

    def save(self, to: str | os.PathLike[str]) -> Path:
        """Saves the artifact to a file, or into a folder under a name that is free. Returns the path."""
        path = Path(to)
        if not path.is_dir():
            path.write_bytes(self.bytes)
            return path
        # The program chose the name: it must not leave the folder or overwrite a file.
        name = Path(os.path.basename(self.name) or "artifact")
        content = self.bytes
        for number in itertools.count(1):
            free = path / (name.name if number == 1 else f"{name.stem}-{number}{name.suffix}")
            with suppress(FileExistsError), free.open("xb") as file:
                file.write(content)
                return free
        raise AssertionError("there is always another number")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return _show.bundle(repr(self), _show.artifact(self))


@dataclass(frozen=True)
class Finding:
    """A policy violation found in the code, or an action that the sandbox denied."""

    rule: str
    category: str
    severity: str
    message: str
    line: int | None
    column: int | None
    suggestion: str
    decided_by: str


@dataclass(frozen=True)
class Installed:
    """Packages installed for an execution."""

    packages: tuple[str, ...]
    cache: str
    install_ms: float


@dataclass(frozen=True)
class Usage:
    """Resource usage of an execution."""

    cpu_ms: float
    peak_memory_bytes: int
    processes_peak: int | None


@dataclass(frozen=True)
class Receipt:
    """How an execution was really isolated."""

    provider: str
    kernel: str
    isolation: tuple[str, ...]
    warm: str | bool
    simulated: bool
    #: The network: its mode, what restricts it (``enforced_by``) and what it reaches; None if Belljar does not decide.
    network: Mapping[str, Any] | None = None
    #: The remote service that ran it (host, template, region), if any; it is then responsible for isolation.
    service: Mapping[str, Any] | None = None


@dataclass(frozen=True, repr=False)
class Result:
    """The result of an execution."""

    id: str
    #: succeeded, failed, timed_out, limit_exceeded, refused, cancelled, interrupted; queued or running until it ends.
    status: str
    exit_code: int | None
    signal: str | None
    limit: str | None
    stdout: str
    stderr: str
    stdout_truncated: bool
    stderr_truncated: bool
    #: Whether ``main`` returned a value, which is then ``value``.
    has_value: bool
    value: Any
    artifacts: tuple[Artifact, ...]
    #: A one-line explanation, if it did not succeed.
    error: str | None
    findings: tuple[Finding, ...]
    dependencies: Installed
    duration_ms: float
    usage: Usage
    receipt: Receipt | None
    metadata: Mapping[str, Any]
    #: In a batch: the index of its request, from 0.
    index: int | None
    #: The JSON object as received.
    raw: Mapping[str, Any] = field(compare=False)

    @property
    def success(self) -> bool:
        return self.status == "succeeded"

    @property
    def ended(self) -> bool:
        return self.status not in ("queued", "running")

    @property
    def output(self) -> str:
        """Standard output."""
        return self.stdout

    @property
    def stdout_bytes(self) -> bytes:
        return _bytes_of(self.raw, "stdout")

    @property
    def stderr_bytes(self) -> bytes:
        return _bytes_of(self.raw, "stderr")

    @property
    def text(self) -> str:
        """Everything a person or a model needs to read: output, value, the reason of a failure, and hints."""
        parts = [self.stdout.rstrip("\n"), self.stderr.rstrip("\n")]
        if self.has_value:
            parts.append(f"returned: {_show.value(self.value)}")
        if not self.success:
            parts.append(f"[{self.status}] {self.error}" if self.error else f"[{self.status}]")
        parts += _show.hints(self.findings, success=self.success)
        return "\n".join(part for part in parts if part)

    def raise_for_status(self) -> Result:
        """Returns the result if it succeeded, else raises :class:`ProgramFailed` or a subclass."""
        if self.success:
            return self
        reason = self.error or f"the execution ended with status {self.status}"
        failure = _FAILURES.get(self.status, ProgramFailed)(reason, self)
        if isinstance(failure, CodeRefused):
            failure.findings = self.findings
        raise failure

    def __iter__(self) -> Iterator[Any]:
        """Unpacks like a tuple: ``stdout, stderr, exit_code = …``."""
        return iter((self.stdout, self.stderr, self.exit_code))

    def __repr__(self) -> str:
        return _show.line(self)

    def _repr_html_(self) -> str:
        return _show.html_of(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return _show.bundle(_show.plain(self), _show.html_of(self))


def _bytes_of(raw: Mapping[str, Any], stream: str) -> bytes:
    encoded = raw.get(f"{stream}_base64")
    return base64.b64decode(encoded) if encoded else str(raw.get(stream, "")).encode()


def read_result(raw: Mapping[str, Any]) -> Result:
    """Reads a result object. Fields that a newer server adds are only in ``raw``."""
    returned, installed = raw["result"], raw["dependencies"]
    return Result(
        id=raw["id"],
        status=raw["status"],
        exit_code=raw["exit_code"],
        signal=raw["signal"],
        limit=raw["limit"],
        stdout=raw["stdout"],
        stderr=raw["stderr"],
        stdout_truncated=raw["stdout_truncated"],
        stderr_truncated=raw["stderr_truncated"],
        has_value=returned["present"],
        value=returned["value"],
        artifacts=tuple(_pick(Artifact, each) for each in raw["artifacts"]),
        error=raw["error"],
        findings=read_findings(raw["findings"]),
        dependencies=Installed(tuple(installed["packages"]), installed["cache"], installed["install_ms"]),
        duration_ms=raw["duration_ms"],
        usage=_pick(Usage, raw["usage"]),
        receipt=read_receipt(raw["receipt"]),
        metadata=raw["metadata"],
        index=raw.get("index"),
        raw=raw,
    )


def read_findings(raw: Sequence[Mapping[str, Any]]) -> tuple[Finding, ...]:
    return tuple(_pick(Finding, each) for each in raw)


def read_receipt(raw: Mapping[str, Any] | None) -> Receipt | None:
    return None if raw is None else _pick(Receipt, {**raw, "isolation": tuple(raw["isolation"])})


def _pick(kind: Any, raw: Mapping[str, Any]) -> Any:
    """Builds ``kind`` from its known fields; missing ones are None."""
    return kind(**{name: raw.get(name) for name in kind.__dataclass_fields__})
