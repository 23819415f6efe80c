"""The guides in ``docs`` say what happens: their commands are run, and what they show is compared.

A block below the line ```NAME`:`` is a file of that name. What ``console`` blocks have behind ``$`` is typed into one
shell, in a fresh folder; ``…`` stands for anything, and for any number of lines where it has one to itself.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

GUIDES = ("agents", "operators", "evaluations")
ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"(?:^`(?P<name>[^`\n]+)`:\n\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[tuple[str, str]]:
    """Each command, and what is shown below it."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines(keepends=True):
        command, shown = found[-1] if found else ("", "")
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif command.endswith("\\\n") and not shown:
            found[-1] = (command + line, "")
        else:
            assert found, f"nothing was typed before {line!r}"
            found[-1] = (command, shown + line)
    return found


def looks_like(shown: str) -> str:
    """A pattern for what is shown."""
    pattern = re.escape(shown)
    return re.sub("^…\n", "(?:.*\n)*?", pattern.replace("\\\n", "\n"), flags=re.MULTILINE).replace("…", ".*")


def narrow(text: str) -> str:
    """Columns are as wide as what happens to be in them."""
    return re.sub(" +", " ", text)


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def typed(lines: list[str], folder: Path, seconds: float = 120, **variables: str) -> list[tuple[str, str]]:
    """Types all of it into one shell: what each printed, and its status."""
    mark = "\nprintf '\\0%d\\0' $?\n"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BELLJAR_", "XDG_"))}
    shell = subprocess.Popen(
        ["bash", "--norc", "-c", "".join(line + mark for line in lines)],
        cwd=folder,
        env={**kept, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        parts = shell.communicate(timeout=seconds)[0].decode().split("\0")
    finally:
        # Also what a guide that failed left in the background.
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
    return list(zip(parts[::2], parts[1::2]))


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide(name: str, tmp_path: Path) -> None:
    guide = (ROOT / "docs" / f"{name}.md").read_text()
    # Machines for tests may lack a layer, and have something else at that port.
    guide = guide.replace("7117", free_port()).replace(" serve --", " serve --allow-degraded --")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "belljar").symlink_to(os.environ["BELLJAR_BIN"])
    wanted: list[tuple[str, str]] = []
    for block in _BLOCK.finditer(guide):
        if block["name"]:
            (tmp_path / block["name"]).write_text(block["text"])
        else:
            assert block["kind"] == "console", f"nobody runs this: {block['text']}"
            wanted += commands(block["text"])
    assert len(wanted) > 2
    places = [str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    answers = typed([command for command, _ in wanted], tmp_path, HOME=str(tmp_path), PATH=":".join(places))
    for (command, shown), (printed, status) in zip(wanted, answers):
        as_shown = re.fullmatch(looks_like(narrow(shown)), narrow(printed)) is not None
        assert as_shown and status == "0", f"status {status}\n$ {command}{printed}\nand not:\n{shown}"
    assert len(answers) == len(wanted)


@pytest.mark.clone
def test_from_a_clone_to_an_agent(tmp_path: Path) -> None:
    """The commands of one section of the README and nothing else, but for those that need a model."""
    clone = tmp_path / "clone"
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns("target", ".git", ".venv", "__pycache__"))
    section = (ROOT / "README.md").read_text().partition("## From Python")[2].partition("\n## ")[0]
    block = _BLOCK.search(section)
    assert block is not None
    wanted = [(command, shown) for command, shown in commands(block["text"]) if "openai" not in command]
    assert len(wanted) == 4
    lines = [command for command, _ in wanted]
    lines.append("python -c 'from belljar._binary import find_binary; print(find_binary())'")
    # The package alone, with a program that is here already.
    lines.append("python3 -m venv alone && alone/bin/pip install --quiet ./python")
    lines.append("BELLJAR_BIN=$HERE alone/bin/python -c 'import belljar; print(belljar.run(command=\"true\"))'")
    answers = typed(lines, clone, 3_000, PYTHONPATH="", HERE=os.environ["BELLJAR_BIN"])
    assert [status for _, status in answers] == ["0"] * len(lines), answers
    printed = [text for text, _ in answers]
    assert printed[2].startswith("<Result succeeded in ")
    assert re.fullmatch(looks_like(wanted[3][1]), printed[3]), printed[3]
    assert (clone / "sales.svg").read_text().count("<rect") == 10
    assert printed[4] == f"{clone}/.venv/bin/belljar\n"
    assert "succeeded" in printed[6]
