"""Builds request objects from arguments. Values are validated by the server, which names the invalid field."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

from . import _json

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

Json = dict[str, Any]
#: A number of bytes, or text such as ``"512M"`` or ``"1.5G"``.
Size: TypeAlias = Union[int, str]
#: Text, bytes, or the path of a local file whose content is sent.
Content: TypeAlias = Union[str, bytes, "os.PathLike[str]"]
#: No network (``False``), every public address (``True`` or ``"internet"``), only the listed hosts, or the host's own
#: network (``"full"``).
Network: TypeAlias = Union[bool, Literal["none", "internet", "full"], Sequence[str]]
#: All GPUs of the machine, or a number of them.
Gpus: TypeAlias = Union[Literal["all"], int]
#: A list with a program and its arguments, or a shell command.
CommandLine: TypeAlias = Union[str, Sequence[str]]


class Limits(TypedDict, total=False):
    """Limits of a run or a sandbox. Omitted ones come from the profile."""

    #: Seconds of wall-clock time.
    timeout: float | None
    memory: Size | None
    #: CPU limit in cores.
    cpus: float | None
    #: Total size of the files that it may write.
    disk: Size | None
    #: Processes and threads at the same time.
    processes: int | None
    #: How much of each output stream is kept.
    output: Size | None


class RunOptions(Limits, total=False):
    """Options of a run, besides the code."""

    language: str
    #: Instead of code: a list with a program and its arguments, or a shell command.
    command: CommandLine | None
    #: Passed to ``main``, whose return value becomes the result's ``value``.
    arguments: Mapping[str, Any] | None
    stdin: str | bytes | None
    env: Mapping[str, str] | None
    #: Files to create in the workspace, by path.
    files: Mapping[str, Content] | None
    #: Packages to install; with ``detect_dependencies`` also the ones that the code imports.
    dependencies: Sequence[str] | None
    detect_dependencies: bool | None
    network: Network | None
    #: GPUs for the program, which provider ``docker`` has if its settings allow them.
    gpus: Gpus | None
    profile: str | None
    policy: str | None
    provider: str | None
    image: str | None
    #: Isolation layers that must be in force; otherwise the run is refused.
    require: Sequence[str] | None
    workdir: str | None
    metadata: Mapping[str, Any] | None


class SandboxOptions(TypedDict, total=False):
    """Options of a new sandbox."""

    #: Seconds that the sandbox may be unused; calls, open streams and running commands are use.
    timeout: float | None
    #: Seconds that the sandbox may exist, used or not.
    life: float | None
    #: Default time limit of a command, in seconds.
    command_timeout: float | None
    on_timeout: Literal["kill", "pause"] | None
    memory: Size | None
    cpus: float | None
    disk: Size | None
    #: Whether programs may change the system, as its root user (``apt-get install``); needs an image.
    root: Literal["read_only", "writable"] | None
    #: Where the disk is: in memory, or in a file of the server, which may be larger than memory.
    disk_storage: Literal["memory", "file"] | None
    processes: int | None
    output: Size | None
    env: Mapping[str, str] | None
    network: Network | None
    gpus: Gpus | None
    profile: str | None
    policy: str | None
    provider: str | None
    image: str | None
    require: Sequence[str] | None
    #: Packages to install at the start. Code that runs later adds the packages that it imports.
    dependencies: Sequence[str] | None
    #: Id of a snapshot whose files the workspace starts with.
    snapshot: str | None
    volumes: Sequence[Mapping[str, Any]] | None
    metadata: Mapping[str, Any] | None


class CommandOptions(TypedDict, total=False):
    """Options of a command in a sandbox."""

    timeout: float | None
    env: Mapping[str, str] | None
    workdir: str | None
    stdin: str | None
    #: Whether standard input stays open for later writes.
    stdin_open: bool | None
    #: How many bytes of its output are kept for later readers.
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
    """Builds the body of ``POST /v1/executions``; omitted options are left out."""
    if (code is None) == (command is None):
        raise ValueError("pass either code or command=…, not both")
    if isinstance(dependencies, str):
        raise ValueError("dependencies: must be a list of names")
    _json.check("arguments", arguments)
    packages = {"packages": None if dependencies is None else list(dependencies), "detect": detect_dependencies}
    return drop_none(
        **_text("code", code),
        language=None if code is None else language,
        command=None if command is None else words(command),
        arguments=arguments,
        **_text("stdin", stdin),
        files=None if files is None else [_file(path, content) for path, content in files.items()],
        dependencies=drop_none(**packages) or None,
        network=network_spec(network),
        limits=limits(timeout, memory, cpus, disk, processes, output),
        **_known(plain, (*_COMMON, "workdir")),
    )


def sandbox_request(
    *,
    timeout: float | None = None,
    life: float | None = None,
    command_timeout: float | None = None,
    memory: Size | None = None,
    cpus: float | None = None,
    disk: Size | None = None,
    processes: int | None = None,
    output: Size | None = None,
    dependencies: Sequence[str] | None = None,
    network: Network | None = None,
    **plain: Any,
) -> Json:
    """Builds the body of ``POST /v1/sandboxes``."""
    if isinstance(dependencies, str):
        raise ValueError("dependencies: must be a list of names")
    return drop_none(
        dependencies=None if dependencies is None else {"packages": list(dependencies)},
        timeout_ms=_milliseconds(timeout),
        life_ms=_milliseconds(life),
        limits=limits(command_timeout, memory, cpus, disk, processes, output),
        network=network_spec(network),
        **_known(plain, (*_COMMON, "root", "disk_storage", "on_timeout", "snapshot", "volumes")),
    )


def command_request(command: CommandLine, *, timeout: float | None = None, **plain: Any) -> Json:
    """Builds the body of ``POST /v1/sandboxes/{id}/commands``."""
    line = {"shell": command} if isinstance(command, str) else {"command": list(command)}
    allowed = ("env", "workdir", "stdin", "stdin_open", "keep_bytes", "background", "terminal")
    return drop_none(**line, timeout_ms=_milliseconds(timeout), **_known(plain, allowed))


def owner_metadata(agent_id: str | None, user_id: str | None) -> dict[str, str]:
    """Returns the metadata that names an agent and a user."""
    ids = drop_none(agent_id=agent_id, user_id=user_id)
    for name, value in ids.items():
        if not isinstance(value, str) or not value:
            raise ValueError(f"{name}: must be text that is not empty")
    return ids


def with_metadata(metadata: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a run or a sandbox with this metadata; their own wins."""
    merged = {**metadata, **(options.get("metadata") or {})}
    return {**options, "metadata": merged} if merged else {**options}


#: Options of both runs and sandboxes that are passed on unchanged.
_COMMON = ("env", "gpus", "profile", "policy", "provider", "image", "require", "metadata")


def _known(options: Mapping[str, Any], allowed: Sequence[str]) -> Mapping[str, Any]:
    for name in options:
        if name not in allowed:
            raise TypeError(f"unknown option {name!r}")
    return options


def drop_none(**fields: Any) -> Json:
    """Returns the fields that are not None."""
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
    fields = drop_none(
        timeout_ms=_milliseconds(timeout),
        memory_bytes=size(memory),
        cpus=cpus,
        disk_bytes=size(disk),
        processes=processes,
        output_bytes=size(output),
    )
    return fields or None


def network_spec(network: Network | None) -> Json | None:
    if network is None:
        return None
    if isinstance(network, bool):
        return {"mode": "internet" if network else "none"}
    if isinstance(network, str):
        if network not in ("none", "internet", "full"):
            raise ValueError("network: must be True, False, 'none', 'internet', 'full' or a list of hosts")
        return {"mode": network}
    return {"mode": "hosts", "hosts": list(network)}


_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)


def size(value: Size | None) -> int | None:
    """Converts a size such as ``"512M"`` to bytes; units are powers of 1024."""
    if value is None or isinstance(value, int):
        return value
    parts = _SIZE.fullmatch(value)
    if parts is None:
        raise ValueError(f"{value!r} is not a size; write, for example, '512M' or '1G'")
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
