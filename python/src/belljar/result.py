"""The result object: what a program did, the same from every front end. Everything from the program in it is data."""

from __future__ import annotations

import base64
import builtins
import itertools
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import _show
from .errors import Cancelled, CodeRefused, LimitExceeded, ProgramFailed, SandboxTimeout

_FAILURES: dict[str, type[ProgramFailed]] = {
    "timed_out": SandboxTimeout,
    "limit_exceeded": LimitExceeded,
    "refused": CodeRefused,
    "cancelled": Cancelled,
    "interrupted": Cancelled,
}


@dataclass(frozen=True)
class Artifact:
    """A file that the program left in ``./artifacts``."""

    name: str
    mime_type: str
    size: int
    content_base64: str = field(repr=False)

    @property
    def bytes(self) -> builtins.bytes:
        """What is in it."""
        return base64.b64decode(self.content_base64)

    def save(self, to: str | os.PathLike[str]) -> Path:
        """Writes it to a file; or into a folder, beside whatever has its name there. Says where it is."""
        path = Path(to)
        if not path.is_dir():
            path.write_bytes(self.bytes)
            return path
        # The program chose the name: it must not lead elsewhere, and nothing may be lost to it.
        name = Path(os.path.basename(self.name) or "artifact")
        for number in itertools.count(1):
            free = path / (name.name if number == 1 else f"{name.stem}-{number}{name.suffix}")
            with suppress(FileExistsError), free.open("xb") as file:
                file.write(self.bytes)
                return free
        raise AssertionError("there is always another number")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return _show.bundle(repr(self), _show.artifact(self))


@dataclass(frozen=True)
class Finding:
    """Something that a policy minds in the code, or that the sandbox kept the program from."""

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
    """What was installed for a run."""

    packages: tuple[str, ...]
    cache: str
    install_ms: float


@dataclass(frozen=True)
class Usage:
    """What a run used."""

    cpu_ms: float
    peak_memory_bytes: int
    processes_peak: int | None


@dataclass(frozen=True)
class Receipt:
    """What really enforced a run."""

    provider: str
    kernel: str
    isolation: tuple[str, ...]
    warm: str | bool
    simulated: bool
    #: Whose machine it ran on (host, template, region), where that was not Belljar's: isolation is theirs then.
    service: Mapping[str, Any] | None = None


@dataclass(frozen=True, repr=False)
class Result:
    """What a program did."""

    id: str
    #: succeeded, failed, timed_out, limit_exceeded, refused, cancelled, interrupted; before its end queued or running.
    status: str
    exit_code: int | None
    signal: str | None
    limit: str | None
    stdout: str
    stderr: str
    stdout_truncated: bool
    stderr_truncated: bool
    #: Whether ``main`` returned something, and what.
    has_value: bool
    value: Any
    artifacts: tuple[Artifact, ...]
    #: One line that a person can act on.
    error: str | None
    findings: tuple[Finding, ...]
    dependencies: Installed
    duration_ms: float
    usage: Usage
    receipt: Receipt | None
    metadata: Mapping[str, Any]
    #: In a batch: the number of its request, from 0.
    index: int | None
    #: The object as it came.
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
        """All that a person or a model needs to read: output, errors, the value and why it did not succeed."""
        parts = [self.stdout.rstrip("\n"), self.stderr.rstrip("\n")]
        if self.has_value:
            parts.append(f"returned: {self.value!r}")
        if not self.success:
            parts.append(f"[{self.status}] {self.error}" if self.error else f"[{self.status}]")
        return "\n".join(part for part in parts if part)

    def raise_for_status(self) -> Result:
        """Raises :class:`ProgramFailed` or its kin unless it succeeded; gives itself otherwise."""
        if self.success:
            return self
        reason = self.error or f"it ended as {self.status}"
        failure = _FAILURES.get(self.status, ProgramFailed)(reason, self)
        if isinstance(failure, CodeRefused):
            failure.findings = self.findings
        raise failure

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
    """Reads the object. Fields that a later server adds are in ``raw``."""
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
    """Takes the fields that are known, whatever else there may be; one that is missing is none."""
    return kind(**{name: raw.get(name) for name in kind.__dataclass_fields__})
