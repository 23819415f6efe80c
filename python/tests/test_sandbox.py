"""Long-lived sandboxes, with the blocking and the async classes."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import time
from pathlib import Path

import pytest

import belljar
from belljar import _archive, _request


def test_code_and_commands_share_files(box: belljar.Sandbox) -> None:
    assert box.run("open('a.txt', 'w').write('hi')").success
    done = box.command("cat a.txt; echo oops >&2; exit 3", env={"X": "1"}, workdir="/workspace")
    assert (done.stdout, done.stderr, done.exit_code, done.success) == ("hi", "oops\n", 3, False)
    assert done.text == "hi\noops\n[exit code 3]"
    with pytest.raises(belljar.ProgramFailed):
        done.raise_for_status()
    assert box.command(["printf", "%s", "a b"]).stdout == "a b"
    with pytest.raises(belljar.SandboxTimeout):
        box.command("sleep 60", timeout=0.2, check=True)


def test_streamed_and_background_commands(box: belljar.Sandbox) -> None:
    with box.stream_command("echo a; echo b >&2") as stream:
        pieces = list(stream)
        assert {piece.stream for piece in pieces} == {"stdout", "stderr"}
        assert stream.result().info.exit_code == 0
    cat = box.start("cat", stdin_open=True)
    cat.write("typed\n")
    cat.write(b"", close=True)
    assert cat.wait().exit_code == 0
    assert "".join(piece.text for piece in cat.output()) == "typed\n"
    assert "".join(piece.text for piece in cat.output(start=3)) == "ed\n"
    sleep = box.start("exec sleep 60")
    assert sleep.info().state == "running"
    sleep.signal("SIGTERM")
    assert sleep.wait().signal == "SIGTERM"
    assert {each.id for each in box.commands()} >= {cat.id, sleep.id}


def test_files(box: belljar.Sandbox) -> None:
    box.files.write("deep/er/a.txt", "text")
    box.files.write("run.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
    assert box.command("./run.sh").stdout == "ran\n"
    assert (box.files.read("deep/er/a.txt"), box.files.read_text("deep/er/a.txt")) == (b"text", "text")
    assert [(each.name, each.kind) for each in box.files.list()] == [("deep", "directory"), ("run.sh", "file")]
    assert box.files.stat("run.sh").permissions == "0755"
    box.files.move("run.sh", "deep/run.sh")
    box.files.make_folder("empty")
    with pytest.raises(belljar.Conflict):
        box.files.remove("deep")
    box.files.remove("deep", recursive=True)
    assert [each.name for each in box.files.list()] == ["empty"]
    with pytest.raises(belljar.NotFound):
        box.files.read("nope")


def test_watch_reports_changes(box: belljar.Sandbox) -> None:
    with box.files.watch() as changes:
        # Watching starts with the response, so changes repeat until one is reported.
        box.start("while true; do touch seen; sleep 0.05; done")
        assert next(changes).path == "seen"


def test_upload_and_download_folders(box: belljar.Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "a.txt").write_text("a")
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("sub/a.txt")
    box.files.upload(source, "project")
    assert box.command("cat project/link; ls project").stdout == "alink\nrun.sh\nsub\n"
    done = box.files.download("project", tmp_path / "back")
    assert (done.files, done.skipped) == (2, ["link"])
    assert (tmp_path / "back/sub/a.txt").read_text() == "a"
    assert os.access(tmp_path / "back/run.sh", os.X_OK)
    box.files.upload(source / "run.sh", "alone.sh")
    assert box.files.stat("alone.sh").permissions == "0755"
    assert box.files.download("alone.sh", tmp_path / "alone.sh").files == 1
    with pytest.raises(ValueError, match="max_bytes"):
        box.files.download("project", tmp_path / "small", max_bytes=1)


def _archive_with(*entries: tuple[str, bytes, str]) -> list[bytes]:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, kind, content in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = kind, 0o6777
            if kind == tarfile.REGTYPE:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content.encode()))
            else:
                entry.linkname = content
                archive.addfile(entry)
    return [file.getvalue()]


@pytest.mark.parametrize("name", ["../out", "/tmp/belljar-out", "a/../../out", "x/" * 200 + "out"])
def test_archive_paths_cannot_leave_the_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="invalid path"):
        _archive.unpack(_archive_with((name, tarfile.REGTYPE, "x")), tmp_path / "in", 1 << 20)
    assert not (tmp_path / "out").exists()


def test_archive_links_cannot_leave_the_folder(tmp_path: Path) -> None:
    link = ("a", tarfile.SYMTYPE, str(tmp_path)), ("a/out", tarfile.REGTYPE, "x")
    done = _archive.unpack(_archive_with(*link), tmp_path / "in", 1 << 20)
    assert (done.skipped, (tmp_path / "out").exists()) == (["a"], False)
    # Links that already exist, to a folder or a file, are not followed either.
    (tmp_path / "there").mkdir()
    (tmp_path / "there/a").symlink_to(tmp_path)
    (tmp_path / "there/b").symlink_to(tmp_path / "out")
    for name in ("a/out", "b"):
        with pytest.raises(ValueError, match="already exists and is not"):
            _archive.unpack(_archive_with((name, tarfile.REGTYPE, "x")), tmp_path / "there", 1 << 20)
    assert not (tmp_path / "out").exists()


def test_archive_cannot_exceed_max_bytes(tmp_path: Path) -> None:
    # A hole takes no space in the archive, and a negative size would offset it in the total.
    less, hole = tarfile.TarInfo("less"), tarfile.TarInfo("hole")
    less.pax_headers = {"size": str(-(8 << 20))}
    hole.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(8 << 20)}
    for entries in ([hole], [less, hole]):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for entry in entries:
                entry.size = 512 if entry is hole else 0
                archive.addfile(entry, io.BytesIO(b"0\n".ljust(512, b"\0")))
        with pytest.raises(ValueError, match=r"max_bytes|cannot be read"):
            _archive.unpack([file.getvalue()], tmp_path, 1 << 20)
        assert not (tmp_path / "hole").exists()


def test_downloaded_files_have_no_set_id_bits(tmp_path: Path) -> None:
    _archive.unpack(_archive_with(("a", tarfile.REGTYPE, "x"), ("d", tarfile.DIRTYPE, "")), tmp_path, 1 << 20)
    assert (tmp_path / "a").stat().st_mode & 0o7000 == 0
    assert (tmp_path / "d").stat().st_mode & 0o7000 == 0


def _ask(box: belljar.Sandbox, path: str) -> tuple[int, str]:
    deadline = time.monotonic() + 20
    while True:
        try:
            response = box.request("GET", 8000, path)
            return response.status_code, response.text
        except belljar.PortUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_ports(box: belljar.Sandbox) -> None:
    with pytest.raises(belljar.PortUnavailable):
        box.request("GET", 8000)
    box.files.write("index.html", "hello")
    box.start("exec python3 -m http.server 8000")
    assert _ask(box, "/") == (200, "hello")
    # An error status of the program is a response, not an error of the server.
    assert _ask(box, "/nope")[0] == 404
    port = box.port(8000)
    assert port.url.endswith(f"/v1/sandboxes/{box.id}/ports/8000/")
    assert "Bearer" not in repr(port)


def test_program_cannot_impersonate_the_server(box: belljar.Sandbox) -> None:
    forged = '{"error": {"code": "unauthorized", "message": "give me your key", "request_id": "req_1"}}'
    box.files.write(
        "forge.py",
        f"""
from http.server import *
class Forger(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(401); self.send_header("x-request-id", "req_1"); self.end_headers()
        self.wfile.write({forged!r}.encode())
HTTPServer(("127.0.0.1", 8000), Forger).serve_forever()
""",
    )
    box.start("exec python3 forge.py")
    assert _ask(box, "/")[0] == 401


def test_terminal(box: belljar.Sandbox) -> None:
    pytest.importorskip("websockets")
    with box.shell("exec sh", rows=30, columns=100) as shell:
        shell.send("stty size; echo $((40 + 2))\n")
        assert b"30 100" in shell.read_until("42\r\n")
        shell.resize(40, 120)
        shell.send("stty size; exit 3\n")
        assert b"40 120" in b"".join(shell)
        assert shell.ended is not None
        assert shell.ended.exit_code == 3


def test_lifecycle(client: belljar.Client) -> None:
    with belljar.Sandbox(client=client, timeout=600, life=7200, memory="256M", metadata={"a": 1}) as box:
        assert box.pause().state == "paused"
        with pytest.raises(belljar.SandboxPaused):
            box.command("true")
        assert box.resume().state == "running"
        expires = box.extend(1200).expires
        assert expires is not None
        box.files.write("kept", "yes")
        snapshot = box.snapshot("label")
        assert box.stats().processes is not None
        refused = box.command(["python3", "-c", "import ctypes; ctypes.CDLL(None).unshare(0x10000000)"])
        assert "sandbox-syscall" in [finding.rule for finding in refused.findings]
        assert "sandbox-syscall" in [finding.rule for finding in box.stats().findings]
        same = belljar.Sandbox.connect(box.id, client=client)
        assert same.info().metadata == {"a": 1}
        assert box.id in [each.id for each in client.sandboxes()]
    ended = client._transport.send(belljar._calls.sandbox(box.id))
    assert (ended.state, ended.halted, ended.raw["life_ms"]) == ("ended", "closed on request", 7_200_000)
    box.close()
    with pytest.raises(belljar.SandboxEnded, match="closed on request"):
        box.command("true")
    with belljar.Sandbox(client=client, snapshot=snapshot.id) as again:
        assert again.files.read("kept") == b"yes"
    assert snapshot.id in [each.id for each in client.snapshots()]
    client.delete_snapshot(snapshot.id)


def test_options_of_a_new_sandbox() -> None:
    request = _request.sandbox_request(timeout=60, life=3600, dependencies=["six", "npm:lodash"])
    packages = {"packages": ["six", "npm:lodash"]}
    assert request == {"timeout_ms": 60_000, "life_ms": 3_600_000, "dependencies": packages}
    with pytest.raises(ValueError, match="must be a list"):
        _request.sandbox_request(dependencies="six")


async def _use_all_methods(tmp_path: Path) -> None:
    async with belljar.AsyncSandbox() as box:
        assert (await box.run("open('a', 'w').write('hi')", check=True)).success
        assert (await box.command("cat a")).stdout == "hi"
        async with box.stream("print(1)") as stream:
            assert "".join([piece.text async for piece in stream]) == "1\n"
        async with box.stream_command("echo 2") as stream:
            assert (await stream.result()).success
        command = await box.start("cat", stdin_open=True)
        await command.write("x", close=True)
        assert (await command.wait()).exit_code == 0
        await box.files.write("d/b", b"b")
        assert [each.name for each in await box.files.list("d")] == ["b"]
        await asyncio.to_thread((tmp_path / "up").mkdir)
        await asyncio.to_thread((tmp_path / "up/c").write_text, "c")
        await box.files.upload(tmp_path / "up", "up")
        assert (await box.files.download("up", tmp_path / "down")).files == 1
        assert (await box.files.download("a", tmp_path / "a")).bytes == 2
        await box.files.remove("up", recursive=True)
        assert (await box.pause()).state == "paused"
        assert (await box.resume()).state == "running"
        shell = await box.shell("exec sh")
        async with shell:
            await shell.send("echo $((40 + 2)); exit\n")
            assert b"42" in await shell.read_until("42\r\n")
        with pytest.raises(belljar.PortUnavailable):
            await box.request("GET", 8000)
        assert (await box.info()).state == "running"


def test_async_sandbox(tmp_path: Path) -> None:
    pytest.importorskip("websockets")
    asyncio.run(_use_all_methods(tmp_path))


def test_canceled_task_cancels_its_run() -> None:
    async def go() -> float:
        async with belljar.AsyncSandbox() as box:
            task = asyncio.ensure_future(box.run("import time\ntime.sleep(60)"))
            while not any(each.state == "running" for each in await box.commands()):
                await asyncio.sleep(0.05)
                if task.done():
                    break
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            # This run starts only after the canceled one has ended.
            return (await box.run("print(1)", check=True)).duration_ms

    assert asyncio.run(asyncio.wait_for(go(), 30)) < 20_000
