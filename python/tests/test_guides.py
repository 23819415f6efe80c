"""Runs the commands of the guides in ``docs`` and compares their output with the text.

A block after a line ```NAME`:`` is a file of that name. The commands after ``$`` in ``console`` blocks run in one
shell, in a fresh folder. ``…`` matches anything within a line; alone on a line, it matches any number of lines.
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

GUIDES = ("agents", "artifacts", "evaluations", "moving", "network", "operators", "results")
ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"(?:^`(?P<name>[^`\n]+)`:\n\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[tuple[str, str]]:
    """Returns each command with the output shown below it."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines(keepends=True):
        command, shown = found[-1] if found else ("", "")
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif command.endswith("\\\n") and not shown:
            found[-1] = (command + line, "")
        else:
            assert found, f"output without a command: {line!r}"
            found[-1] = (command, shown + line)
    return found


def output_pattern(shown: str) -> str:
    """Returns a regular expression that matches the shown output."""
    pattern = re.escape(shown)
    return re.sub("^…\n", "(?:.*\n)*?", pattern.replace("\\\n", "\n"), flags=re.MULTILINE).replace("…", ".*")


def squeeze_spaces(text: str) -> str:
    """Replaces runs of spaces, because column widths depend on the content."""
    return re.sub(" +", " ", text)


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def run_in_shell(lines: list[str], folder: Path, seconds: float = 120, **variables: str) -> list[tuple[str, str]]:
    """Runs the lines in one shell. Returns the output and exit status of each."""
    mark = "\nprintf '\\0%d\\0' $?\n"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BELLJAR_", "XDG_"))}
    shell = subprocess.Popen(
        ["bash", "--norc", "-c", "".join(line + mark for line in lines)],
        cwd=folder,
        env={**environment, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        parts = shell.communicate(timeout=seconds)[0].decode().split("\0")
    finally:
        # Also ends background processes of a guide that failed.
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
    return list(zip(parts[::2], parts[1::2]))


@pytest.mark.parametrize("name", GUIDES)
def test_guide_commands_print_what_the_guide_shows(name: str, tmp_path: Path) -> None:
    guide = (ROOT / "docs" / f"{name}.md").read_text()
    # Test machines may lack a layer, and the port may be in use.
    guide = guide.replace("7117", free_port()).replace(" serve --", " serve --allow-degraded --")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "belljar").symlink_to(os.environ["BELLJAR_BIN"])
    expected: list[tuple[str, str]] = []
    for block in _BLOCK.finditer(guide):
        if block["name"]:
            (tmp_path / block["name"]).write_text(block["text"])
        else:
            assert block["kind"] == "console", f"this block is never run: {block['text']}"
            expected += commands(block["text"])
    assert len(expected) > 2
    places = [str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    answers = run_in_shell([command for command, _ in expected], tmp_path, HOME=str(tmp_path), PATH=":".join(places))
    for (command, shown), (printed, status) in zip(expected, answers):
        matches = re.fullmatch(output_pattern(squeeze_spaces(shown)), squeeze_spaces(printed)) is not None
        assert matches and status == "0", f"status {status}\n$ {command}{printed}\nexpected:\n{shown}"
    assert len(answers) == len(expected)


@pytest.mark.clone
def test_from_a_clone_to_an_agent(tmp_path: Path) -> None:
    """Runs the commands of one README section, except those that need a model."""
    clone = tmp_path / "clone"
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns("target", ".git", ".venv", "__pycache__"))
    section = (ROOT / "README.md").read_text().partition("## From Python")[2].partition("\n## ")[0]
    block = _BLOCK.search(section)
    assert block is not None
    expected = [(command, shown) for command, shown in commands(block["text"]) if "openai" not in command]
    assert len(expected) == 4
    lines = [command for command, _ in expected]
    lines.append("python -c 'from belljar._binary import find_binary; print(find_binary())'")
    # The package alone, with an existing program.
    lines.append("python3 -m venv alone && alone/bin/pip install --quiet ./python")
    lines.append("BELLJAR_BIN=$HERE alone/bin/python -c 'import belljar; print(belljar.run(command=\"true\"))'")
    answers = run_in_shell(lines, clone, 3_000, PYTHONPATH="", HERE=os.environ["BELLJAR_BIN"])
    assert [status for _, status in answers] == ["0"] * len(lines), answers
    printed = [text for text, _ in answers]
    assert printed[2].startswith("<Result succeeded in ")
    assert re.fullmatch(output_pattern(expected[3][1]), printed[3]), printed[3]
    assert (clone / "sales.svg").read_text().count("<rect") == 10
    assert printed[4] == f"{clone}/.venv/bin/belljar\n"
    assert "succeeded" in printed[6]
