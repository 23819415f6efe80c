"""All API calls as data: the request to send and how to read its response. Nothing here does I/O."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Callable, TypeVar
from urllib.parse import quote

import httpx

from ._http import Call
from ._json import loads
from ._request import Json, drop_none
from .errors import BelljarError
from .result import Artifact, Result, read_result
from .states import (
    CommandInfo,
    CommandResult,
    FileInfo,
    SandboxInfo,
    Snapshot,
    Stats,
    read_command,
    read_ended,
    read_file,
    read_sandbox,
    read_snapshot,
    read_stats,
)

T = TypeVar("T")
_EVENTS = {"accept": "text/event-stream"}


def _json(read: Callable[[Mapping[str, Any]], T]) -> Callable[[httpx.Response], T]:
    return lambda response: read(loads(response.content))


def _nothing(response: httpx.Response) -> None:
    return None


def _part(text: str) -> str:
    """Quotes text as one path segment."""
    return quote(text, safe="")


# ── Executions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def run(request: Json, *, key: str | None = None, sandbox: str | None = None) -> Call[Result]:
    headers = {} if key is None else {"idempotency-key": key}
    path = _executions(sandbox)
    return Call("POST", path, _json(read_result), json=request, headers=headers, waits=True, repeatable=key is not None)


def stream(request: Json, *, sandbox: str | None = None) -> Call[None]:
    return Call("POST", _executions(sandbox), _nothing, json=request, headers=_EVENTS)


def submit(request: Json, *, key: str | None = None, sandbox: str | None = None) -> Call[str]:
    def read(accepted: Mapping[str, Any]) -> str:
        return str(accepted["id"])

    headers = {} if key is None else {"idempotency-key": key}
    wanted = {**request, "wait": False}
    return Call("POST", _executions(sandbox), _json(read), json=wanted, headers=headers, repeatable=key is not None)


def get(id: str) -> Call[Result]:
    return Call("GET", f"/v1/executions/{_part(id)}", _json(read_result), repeatable=True)


def follow(id: str) -> Call[None]:
    return Call("GET", f"/v1/executions/{_part(id)}", _nothing, headers=_EVENTS, repeatable=True)


def cancel(id: str) -> Call[Result]:
    return Call("POST", f"/v1/executions/{_part(id)}/cancel", _json(read_result), waits=True)


def delete_execution(id: str) -> Call[None]:
    return Call("DELETE", f"/v1/executions/{_part(id)}", _nothing, waits=True)


def download(artifact: Artifact) -> Call[Artifact]:
    """Fetches the content of an artifact that has a URL."""

    def read(response: httpx.Response) -> Artifact:
        return replace(artifact, content_base64=base64.b64encode(response.content).decode(), url=None)

    path = artifact.url or ""
    if not path.startswith("/v1/executions/"):
        raise BelljarError(f"the artifact {artifact.name!r} has no URL on a server")
    return Call("GET", path, read, repeatable=True)


def _executions(sandbox: str | None) -> str:
    return "/v1/executions" if sandbox is None else f"{_box(sandbox)}/executions"


# ── Sandboxes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _box(id: str) -> str:
    return f"/v1/sandboxes/{_part(id)}"


def open_sandbox(request: Json) -> Call[SandboxInfo]:
    return Call("POST", "/v1/sandboxes", _json(read_sandbox), json=request, waits=True)


def sandboxes(cursor: str | None) -> Call[tuple[list[SandboxInfo], str | None]]:
    def read(page: Mapping[str, Any]) -> tuple[list[SandboxInfo], str | None]:
        return [read_sandbox(each) for each in page["sandboxes"]], page["next_cursor"]

    return Call("GET", "/v1/sandboxes", _json(read), params=drop_none(cursor=cursor), repeatable=True)


def sandbox(id: str) -> Call[SandboxInfo]:
    return Call("GET", _box(id), _json(read_sandbox), repeatable=True)


def close_sandbox(id: str) -> Call[SandboxInfo]:
    return Call("DELETE", _box(id), _json(read_sandbox), waits=True, repeatable=True)


def pause(id: str) -> Call[SandboxInfo]:
    return Call("POST", f"{_box(id)}/pause", _json(read_sandbox), waits=True)


def resume(id: str) -> Call[SandboxInfo]:
    return Call("POST", f"{_box(id)}/resume", _json(read_sandbox), waits=True)


def extend(id: str, seconds: float) -> Call[SandboxInfo]:
    return Call("POST", f"{_box(id)}/extend", _json(read_sandbox), json={"timeout_ms": round(seconds * 1_000)})


def stats(id: str) -> Call[Stats]:
    return Call("GET", f"{_box(id)}/stats", _json(read_stats), repeatable=True)


def snapshot(id: str, label: str | None) -> Call[Snapshot]:
    return Call("POST", f"{_box(id)}/snapshots", _json(read_snapshot), json=drop_none(label=label), waits=True)


def snapshots() -> Call[list[Snapshot]]:
    def read(page: Mapping[str, Any]) -> list[Snapshot]:
        return [read_snapshot(each) for each in page["snapshots"]]

    return Call("GET", "/v1/snapshots", _json(read), repeatable=True)


def delete_snapshot(id: str) -> Call[None]:
    return Call("DELETE", f"/v1/snapshots/{_part(id)}", _nothing)


# ── Commands ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _command(box: str, number: int) -> str:
    return f"{_box(box)}/commands/{number}"


def command(box: str, request: Json) -> Call[CommandResult]:
    return Call("POST", f"{_box(box)}/commands", _json(read_ended), json=request, waits=True)


def stream_command(box: str, request: Json) -> Call[None]:
    return Call("POST", f"{_box(box)}/commands", _nothing, json=request, headers=_EVENTS)


def start_command(box: str, request: Json) -> Call[CommandInfo]:
    wanted = {**request, "background": True}
    return Call("POST", f"{_box(box)}/commands", _json(read_command), json=wanted)


def commands(box: str) -> Call[list[CommandInfo]]:
    def read(page: Mapping[str, Any]) -> list[CommandInfo]:
        return [read_command(each) for each in page["commands"]]

    return Call("GET", f"{_box(box)}/commands", _json(read), repeatable=True)


def command_info(box: str, number: int) -> Call[CommandInfo]:
    return Call("GET", _command(box, number), _json(read_command), repeatable=True)


def command_output(box: str, number: int, start: int) -> Call[None]:
    path = f"{_command(box, number)}/output"
    return Call("GET", path, _nothing, params={"from": start}, headers=_EVENTS, repeatable=True)


def command_signal(box: str, number: int, signal: str | int) -> Call[None]:
    return Call("POST", f"{_command(box, number)}/signal", _nothing, json={"signal": signal})


def command_stdin(box: str, number: int, data: bytes, close: bool) -> Call[None]:
    params = {"close": "true"} if close else {}
    return Call("POST", f"{_command(box, number)}/stdin", _nothing, params=params, content=data, waits=True)


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _files(box: str, rest: str = "") -> str:
    return f"{_box(box)}/files{rest}"


def read_bytes(box: str, path: str) -> Call[bytes]:
    return Call("GET", _files(box), lambda response: response.content, params={"path": path}, repeatable=True)


def write_bytes(box: str, path: str, data: bytes, permissions: str | None) -> Call[None]:
    params = drop_none(path=path, permissions=permissions)
    return Call("PUT", _files(box), _nothing, params=params, content=data, repeatable=True)


def write_pieces(box: str, path: str, pieces: Callable[[], Iterator[bytes]], permissions: str | None) -> Call[None]:
    params = drop_none(path=path, permissions=permissions)
    return Call("PUT", _files(box), _nothing, params=params, pieces=pieces, repeatable=True)


def list_files(box: str, path: str, cursor: str | None) -> Call[tuple[list[FileInfo], str | None]]:
    def read(page: Mapping[str, Any]) -> tuple[list[FileInfo], str | None]:
        return [read_file(each, each["name"]) for each in page["entries"]], page["next_cursor"]

    params = drop_none(path=path, cursor=cursor)
    return Call("GET", _files(box, "/list"), _json(read), params=params, repeatable=True)


def stat(box: str, path: str) -> Call[FileInfo]:
    def read(raw: Mapping[str, Any]) -> FileInfo:
        return read_file(raw, path)

    return Call("GET", _files(box, "/stat"), _json(read), params={"path": path}, repeatable=True)


def remove(box: str, path: str, recursive: bool) -> Call[None]:
    return Call("DELETE", _files(box), _nothing, params={"path": path, "recursive": json.dumps(recursive)})


def make_folder(box: str, path: str) -> Call[None]:
    return Call("POST", _files(box, "/folder"), _nothing, json={"path": path}, repeatable=True)


def move(box: str, source: str, target: str, replace: bool) -> Call[None]:
    return Call("POST", _files(box, "/move"), _nothing, json={"from": source, "to": target, "replace": replace})


def watch(box: str, path: str, recursive: bool) -> Call[None]:
    params = {"path": path, "recursive": json.dumps(recursive)}
    return Call("GET", _files(box, "/watch"), _nothing, params=params, headers=_EVENTS)


def pack(box: str, path: str) -> Call[None]:
    return Call("GET", _files(box, "/archive"), _nothing, params={"path": path, "format": "tar"}, repeatable=True)


def unpack(box: str, path: str, pieces: Callable[[], Iterator[bytes]]) -> Call[None]:
    return Call("PUT", _files(box, "/archive"), _nothing, params={"path": path, "format": "tar"}, pieces=pieces)


# ── Ports ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def port_path(box: str, port: int, path: str) -> str:
    return f"{_box(box)}/ports/{int(port)}/{path.lstrip('/')}"
