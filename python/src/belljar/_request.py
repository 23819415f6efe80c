"""What a caller says becomes the request object. Nothing is checked that the server checks: it refuses by name."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

Json = dict[str, Any]
#: Bytes, or as people write them: ``"512M"``, ``"1.5G"``.
Size: TypeAlias = Union[int, str]
#: Text, bytes, or a file of this machine whose content is sent.
Content: TypeAlias = Union[str, bytes, "os.PathLike[str]"]
#: Nothing, everything, or the named hosts alone.
Network: TypeAlias = Union[bool, Literal["none", "full"], Sequence[str]]
#: A program and its arguments, or a line for the shell.
CommandLine: TypeAlias = Union[str, Sequence[str]]


class Limits(TypedDict, total=False):
    """What a run, or a sandbox, may use. What is left out comes from the profile."""

    #: Seconds of wall-clock time.
    timeout: float | None
    memory: Size | None
    #: Processor share in cores.
    cpus: float | None
    #: Everything that it may write, together.
    disk: Size | None
    #: Processes and threads at one time.
    processes: int | None
    #: Kept of each output stream.
    output: Size | None


class RunOptions(Limits, total=False):
    """What can be said about a run beside the code."""

    language: str
    #: Instead of code: a program and its arguments, or a line for the shell.
    command: CommandLine | None
    #: Given to ``main``; what that returns is the result's ``value``.
    arguments: Mapping[str, Any] | None
    stdin: str | bytes | None
    env: Mapping[str, str] | None
    #: Put into the workspace, by their paths in it.
    files: Mapping[str, Content] | None
    #: Packages to install; with ``detect_dependencies`` also those that the code imports.
    dependencies: Sequence[str] | None
    detect_dependencies: bool | None
    network: Network | None
    profile: str | None
    policy: str | None
    provider: str | None
    image: str | None
    #: Layers without which nothing may run.
    require: Sequence[str] | None
    workdir: str | None
    metadata: Mapping[str, Any] | None


class SandboxOptions(TypedDict, total=False):
    """What can be said about a sandbox that is to be opened."""

    #: Seconds that it lives.
    timeout: float | None
    #: Seconds that a command may take which has no time of its own.
    command_timeout: float | None
    on_timeout: Literal["kill", "pause"] | None
    memory: Size | None
    cpus: float | None
    disk: Size | None
    processes: int | None
    output: Size | None
    env: Mapping[str, str] | None
    network: Network | None
    profile: str | None
    policy: str | None
    provider: str | None
    image: str | None
    require: Sequence[str] | None
    #: The id of a snapshot with whose files the workspace starts.
    snapshot: str | None
    volumes: Sequence[Mapping[str, Any]] | None
    metadata: Mapping[str, Any] | None


class CommandOptions(TypedDict, total=False):
    """What can be said about a command in a sandbox."""

    timeout: float | None
    env: Mapping[str, str] | None
    workdir: str | None
    stdin: str | None
    #: Whether more can be written to it later.
    stdin_open: bool | None
    #: How much of its output is kept for whoever looks later.
    keep_bytes: int | None


def run_request(
    code: str | bytes | None = None,
    *,
    language: str = "python",
    command: CommandLine | None = None,
    arguments: Mapping[str, Any] | None = None,
    stdin: str | bytes | None = None,
    files: Mapping[str, Content] | None = None,
    dependencies: Sequence[str] | None = None,
    detect_dependencies: bool | None = None,
    network: Network | None = None,
    timeout: float | None = None,
    memory: Size | None = None,
    cpus: float | None = None,
    disk: Size | None = None,
    processes: int | None = None,
    output: Size | None = None,
    **plain: Any,
) -> Json:
    """The body of ``POST /v1/executions``, without what was not said."""
    if (code is None) == (command is None):
        raise ValueError("give code, or command=…, and not both")
    if isinstance(dependencies, str):
        raise ValueError("dependencies: a list of names")
    packages = {"packages": None if dependencies is None else list(dependencies), "detect": detect_dependencies}
    return given(
        **_text("code", code),
        language=None if code is None else language,
        command=None if command is None else words(command),
        arguments=arguments,
        **_text("stdin", stdin),
        files=None if files is None else [_file(path, content) for path, content in files.items()],
        dependencies=given(**packages) or None,
        network=network_spec(network),
        limits=limits(timeout, memory, cpus, disk, processes, output),
        **_known(plain, (*_COMMON, "workdir")),
    )


def sandbox_request(
    *,
    timeout: float | None = None,
    command_timeout: float | None = None,
    memory: Size | None = None,
    cpus: float | None = None,
    disk: Size | None = None,
    processes: int | None = None,
    output: Size | None = None,
    network: Network | None = None,
    **plain: Any,
) -> Json:
    """The body of ``POST /v1/sandboxes``."""
    return given(
        timeout_ms=_milliseconds(timeout),
        limits=limits(command_timeout, memory, cpus, disk, processes, output),
        network=network_spec(network),
        **_known(plain, (*_COMMON, "on_timeout", "snapshot", "volumes")),
    )


def command_request(command: CommandLine, *, timeout: float | None = None, **plain: Any) -> Json:
    """The body of ``POST /v1/sandboxes/{id}/commands``."""
    line = {"shell": command} if isinstance(command, str) else {"command": list(command)}
    allowed = ("env", "workdir", "stdin", "stdin_open", "keep_bytes", "background", "terminal")
    return given(**line, timeout_ms=_milliseconds(timeout), **_known(plain, allowed))


#: What runs and sandboxes have in common, passed on as it is.
_COMMON = ("env", "profile", "policy", "provider", "image", "require", "metadata")


def _known(options: Mapping[str, Any], allowed: Sequence[str]) -> Mapping[str, Any]:
    for name in options:
        if name not in allowed:
            raise TypeError(f"there is no option {name!r}")
    return options


def given(**fields: Any) -> Json:
    """What was said at all."""
    return {name: value for name, value in fields.items() if value is not None}


def words(command: CommandLine) -> list[str]:
    return ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)


def limits(
    timeout: float | None,
    memory: Size | None,
    cpus: float | None,
    disk: Size | None,
    processes: int | None,
    output: Size | None,
) -> Json | None:
    said = given(
        timeout_ms=_milliseconds(timeout),
        memory_bytes=size(memory),
        cpus=cpus,
        disk_bytes=size(disk),
        processes=processes,
        output_bytes=size(output),
    )
    return said or None


def network_spec(network: Network | None) -> Json | None:
    if network is None:
        return None
    if isinstance(network, bool):
        return {"mode": "full" if network else "none"}
    if isinstance(network, str):
        if network not in ("none", "full"):
            raise ValueError("network: True, False, 'none', 'full' or a list of hosts")
        return {"mode": network}
    return {"mode": "hosts", "hosts": list(network)}


_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)


def size(value: Size | None) -> int | None:
    """``"512M"`` as bytes; a prefix means powers of 1024."""
    if value is None or isinstance(value, int):
        return value
    parts = _SIZE.fullmatch(value)
    if parts is None:
        raise ValueError(f"{value!r} is not a size; write for example '512M' or '1G'")
    factor: int = 1024 ** " kmgt".index(parts[2].lower() or " ")
    return round(float(parts[1]) * factor)


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1_000)


def _text(name: str, value: str | bytes | None) -> Json:
    return {f"{name}_base64": _base64(value)} if isinstance(value, bytes) else {name: value}


def _file(path: str, content: Content) -> Json:
    if isinstance(content, str):
        return {"path": path, "content": content}
    if not isinstance(content, bytes):
        content = Path(content).read_bytes()
    return {"path": path, "content_base64": _base64(content)}


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
