"""Playgrounds: local folders that sandboxed programs may change."""

from __future__ import annotations

import asyncio
import os
import zipfile
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
import zipfile
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


def test_a_list_is_a_program_without_a_shell(tmp_path: Path) -> None:
    play = belljar.Playground(tmp_path / "play")
    with play.open("test.py", "w") as file:
        file.write("import sys; print(sys.argv[1:]); print('oops', file=sys.stderr); sys.exit(3)")
    stdout, stderr, exit_code = play.run(["python3", "test.py", "$HOME; ls", "*"], timeout_seconds=30)
    assert (stdout, stderr, exit_code) == ("['$HOME; ls', '*']\n", "oops\n", 3)
    slow = asyncio.run(play.arun(("sleep", "60"), timeout_seconds=0.3))
    assert (slow.status, slow.exit_code) == ("timed_out", None)
    with pytest.raises(belljar.SandboxTimeout, match="timeout after 300 ms"):
        play.run(["sleep", "60"], timeout_seconds=0.3, check=True)
    with pytest.raises(ValueError, match="timeout_seconds, not both"):
        play.run(["true"], timeout=1, timeout_seconds=1)
    with pytest.raises(ValueError, match="not both"):
        play.run(["true"], command="true")
    for program in ([], ["echo", 1]):
        with pytest.raises(ValueError, match="must be a list of text"):
            play.run(program)  # type: ignore[arg-type]


def test_image_of_a_playground(tmp_path: Path) -> None:
    busybox = Path("/bin/busybox")
    if not busybox.exists():
        pytest.skip("busybox is not installed")
    (tmp_path / "root" / "bin").mkdir(parents=True)
    (tmp_path / "root" / "bin" / "busybox").write_bytes(busybox.read_bytes())
    (tmp_path / "root" / "bin" / "busybox").chmod(0o755)
    (tmp_path / "root" / "usr").mkdir()
    (tmp_path / "root" / "usr" / "name").write_text("small")
    play = belljar.Playground(tmp_path / "play", image=tmp_path / "root")
    assert play.run(["/bin/busybox", "cat", "/usr/name"], check=True).stdout == "small"
    with pytest.raises(belljar.InvalidRequest, match="the image has no such program"):
        play.run(["/bin/cat", "/usr/name"])
    assert play.run(["/bin/busybox", "touch", "made"], check=True).success
    # This image has no 'find'.
    play.clean()
    assert os.listdir(play.path) == []
    with pytest.raises(belljar.BelljarError, match="nowhere"):
        belljar.Playground(tmp_path / "play", image=str(tmp_path / "nowhere.tar"))


def _wheel(folder: Path, name: str) -> None:
    """Makes a wheel with one module, ``NAME.answer``."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": "answer = 42\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    folder.mkdir()
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        record = "".join(f"{path},,\n" for path in files)
        for path, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            wheel.writestr(path, text)


def test_packages_are_installed_before_the_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _wheel(tmp_path / "links", "bellplay")
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    play = belljar.Playground(tmp_path / "play", install=["bellplay"])
    program = "import bellplay; print(bellplay.answer)"
    first, again = play.run(program), play.run(["python3", "-c", program])
    for result in (first, again):
        assert (result.stdout, result.dependencies.packages) == ("42\n", ("bellplay==1.0",)), result.text
        # Nothing was left to install.
        assert result.dependencies.cache == "hit"
    assert os.listdir(play.path) == []
    assert not belljar.Playground(tmp_path / "other").run(["python3", "-c", program]).success
    with pytest.raises(belljar.DependencyFailed):
        belljar.Playground(tmp_path / "play", install=["bellplay==2.0"])
    with pytest.raises(ValueError, match="image build --apt"):
        belljar.Playground(tmp_path / "play", install="RUN apt-get install -y git")
