"""The private server: it starts when needed, and ends with its process however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import belljar
from belljar import _server


def python(code: str, **environment: str) -> subprocess.Popen[str]:
    """Starts another Python process that can import this package."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def is_gone(pid: int) -> bool:
    """Returns whether a process has ended or is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


STARTS = """
    import sys, belljar
    from belljar import _server
    assert belljar.run("print(1)").stdout == "1\\n"
    print(_server._private.process.pid, flush=True)
"""


def read_number(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AssertionError(process.communicate()[1])
    return int(line)


def test_server_ends_with_its_process(tmp_path: Path) -> None:
    process = python(STARTS, TMPDIR=str(tmp_path))
    server = read_number(process)
    assert process.communicate() == ("", "")
    assert process.returncode == 0
    assert is_gone(server)
    assert list(tmp_path.iterdir()) == []


def test_server_ends_after_kill_9(tmp_path: Path) -> None:
    process = python(
        STARTS + "    box = belljar.Sandbox()\n    box.start('sleep 1000')\n    sys.stdin.read()", TMPDIR=str(tmp_path)
    )
    server = read_number(process)
    assert len(list(tmp_path.iterdir())) == 1
    process.kill()
    process.communicate()
    until(lambda: is_gone(server))
    until(lambda: list(tmp_path.iterdir()) == [])


def test_forked_child_starts_its_own_server_and_releases_the_parents() -> None:
    forks = """
    import os, time
    if os.fork() == 0:
        assert _server._private is None
        assert belljar.run("print(2)").stdout == "2\\n"
        print(_server._private.process.pid, flush=True)
        sys.stdin.read()
        os._exit(0)
    time.sleep(1000)
    """
    process = python(STARTS + forks)
    parent_server, child_server = read_number(process), read_number(process)
    assert parent_server != child_server
    process.kill()
    # The child still runs and waits for input.
    until(lambda: is_gone(parent_server))
    assert not is_gone(child_server)
    process.communicate()
    until(lambda: is_gone(child_server))


def test_client_works_on_both_sides_of_a_fork() -> None:
    there = _server.private()

    def talks(client: belljar.Client, name: str) -> bool:
        return all(client.run(f"print('{name}', {n})").stdout == f"{name} {n}\n" for n in range(10))

    with belljar.Client(there.url, there.key) as client:
        assert client.run("print(1)").success
        # A connection is open and idle now. If both processes used it, they would read each other's responses.
        child = os.fork()
        if child == 0:
            os._exit(0 if talks(client, "child") else 1)
        assert talks(client, "parent")
        assert os.waitpid(child, 0)[1] == 0


def test_many_threads_start_one_server() -> None:
    counts = """
    import threading, belljar
    from belljar import _server
    started = []
    begin = _server._Private.__init__
    _server._Private.__init__ = lambda self: (started.append(1), begin(self))[1]
    threads = [threading.Thread(target=belljar.run, args=("print(1)",)) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(len(started))
    """
    process = python(counts)
    assert read_number(process) == 1
    process.communicate()


def test_dead_server_is_replaced() -> None:
    dies = """
    import os, signal
    _server._private.process.send_signal(signal.SIGKILL)
    _server._private.process.wait()
    assert belljar.run("print(2)").stdout == "2\\n"
    print(_server._private.process.pid, flush=True)
    """
    process = python(STARTS + dies)
    assert read_number(process) != read_number(process)
    process.communicate()


def test_ctrl_c_does_not_stop_the_server() -> None:
    waits = """
    import time
    try:
        print(0, flush=True)
        time.sleep(1000)
    except KeyboardInterrupt:
        belljar.run("print(1)")
        print(_server._private.process.pid, flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(STARTS + waits)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    server = read_number(process)
    # Now the process is ready for the interrupt.
    assert read_number(process) == 0
    os.killpg(process.pid, signal.SIGINT)
    assert read_number(process) == server
    process.communicate()


def test_missing_program_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BELLJAR_BIN", str(tmp_path / "nope"))
    with pytest.raises(belljar.BinaryNotFound, match="BELLJAR_BIN"):
        _server._Private()
    monkeypatch.delenv("BELLJAR_BIN")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_path", lambda *_: str(tmp_path))
    with pytest.raises(belljar.BinaryNotFound, match="pip install") as missing:
        _server._Private()
    assert "BELLJAR_SERVER" in str(missing.value)
    # The program on PATH is found when the package has none.
    (tmp_path / "belljar").write_text("#!/bin/sh\n")
    (tmp_path / "belljar").chmod(0o755)
    from belljar._binary import find_binary

    assert find_binary() == str(tmp_path / "belljar")


def test_start_failure_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "belljar"
    program.write_text("#!/bin/sh\necho 'no kernel for this' >&2\nexit 125\n")
    program.chmod(0o755)
    monkeypatch.setenv("BELLJAR_BIN", str(program))
    with pytest.raises(belljar.NotStarted, match="no kernel for this"):
        _server._Private()
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    monkeypatch.setattr(_server, "_START_SECONDS", 0.2)
    monkeypatch.setattr(_server, "_END_SECONDS", 0.2)
    with pytest.raises(belljar.NotStarted, match="not ready within"):
        _server._Private()


def test_environment_names_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    there = _server.private()
    monkeypatch.setenv("BELLJAR_SERVER", there.url + "/")
    monkeypatch.setenv("BELLJAR_API_KEY", there.key or "")
    assert _server.named(None, None) == there
    done = []
    thread = threading.Thread(target=lambda: done.append(belljar.run("print(5)").stdout))
    thread.start()
    thread.join()
    assert done == ["5\n"]


def test_the_log_of_the_server_reaches_handlers_only() -> None:
    code = """
    import belljar, logging
    # handlers
    with belljar.Client() as client:
        print(client.run("print(6 * 7)").stdout, end="")
    """
    quiet = python(code, BELLJAR_LOG="debug")
    assert quiet.communicate(timeout=120) == ("42\n", "")
    handled = python(code.replace("# handlers", "logging.basicConfig()"), BELLJAR_LOG="debug")
    printed, logged = handled.communicate(timeout=120)
    assert printed == "42\n"
    assert "WARNING:belljar:" in logged
