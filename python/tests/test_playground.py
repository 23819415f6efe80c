"""Playgrounds: local folders that sandboxed programs may change."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import belljar


def test_programs_change_only_the_playground(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("mine")
    with belljar.Playground(tmp_path / "play") as play:
        assert play.run("open('a.txt', 'w').write('hi')", check=True).success
        assert (play.path / "a.txt").read_text() == "hi"
        done = play.run(command=f"cat a.txt; echo x > {tmp_path}/outside")
        assert (done.stdout, done.success) == ("hi", False)
        assert (tmp_path / "outside").read_text() == "mine"
        result = play.run(
            "import os, sys\ndef main(n): return [n, os.environ['K'], sys.stdin.read()]",
            arguments={"n": 1},
            env={"K": "v"},
            stdin=b"in",
            timeout=20,
            memory="256M",
            network=False,
        )
        assert result.value == [1, "v", "in"]
        assert asyncio.run(play.arun("print(open('a.txt').read())")).stdout == "hi\n"
        with pytest.raises(belljar.InvalidRequest):
            play.run("x", language="latin")
        with pytest.raises(belljar.SandboxTimeout):
            play.run("while True: pass", timeout=0.3, check=True)


def test_program_environment_does_not_affect_belljar_itself(tmp_path: Path) -> None:
    play = belljar.Playground(tmp_path / "play")
    # Outside, this variable would make belljar fail, and LD_PRELOAD would load code into it.
    result = play.run(command='echo "$BELLJAR_CONFIG"', env={"BELLJAR_CONFIG": "/nowhere"}, check=True)
    assert result.stdout == "/nowhere\n"


def test_open_does_not_follow_links(tmp_path: Path) -> None:
    play = belljar.Playground(tmp_path / "play")
    (tmp_path / "secret").write_text("secret")
    with play.open("sub.txt", "w") as file:
        file.write("é")
    assert play.run("print(open('sub.txt', encoding='utf-8').read())").stdout == "é\n"
    with play.open("sub.txt", "rb") as file:
        assert file.read() == "é".encode()
    play.run(
        f"import os\nos.symlink('{tmp_path}/secret', 'a')\nos.symlink('{tmp_path}', 'd')\nos.mkfifo('pipe')", check=True
    )
    for path in ("a", "d/secret"):
        with pytest.raises(OSError):
            play.open(path)
    for path in ("pipe", "../secret", str(tmp_path / "secret"), ""):
        with pytest.raises(ValueError):
            play.open(path)


def test_clean_runs_inside_a_sandbox(tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "file").write_text("kept")
    play = belljar.Playground(tmp_path / "play")
    play.run(
        f"""
import os
os.symlink('{tmp_path}/keep', 'link')
os.mkdir('locked'); open('locked/x', 'w'); os.chmod('locked', 0)
for _ in range(1200):
    os.mkdir('d'); os.chdir('d')
""",
        check=True,
    )
    play.clean()
    assert os.listdir(play.path) == []
    assert (tmp_path / "keep" / "file").read_text() == "kept"


def test_clean_refuses_to_remove_earlier_files(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    play = belljar.Playground(tmp_path)
    with pytest.raises(ValueError, match="everything=True"):
        play.clean()
    assert (tmp_path / "mine").exists()
    play.clean(everything=True)
    assert os.listdir(tmp_path) == []
