"""Runs the examples of the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_readme_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 5
    exec("\n".join(blocks), {})


def test_both_pyproject_files_have_the_same_metadata() -> None:
    root = Path(__file__).parents[2]

    def project(path: Path) -> str:
        text = path.read_text().partition("[project]")[2].partition("[tool.")[0]
        return re.sub(r"readme = .*", "", text)

    assert project(root / "pyproject.toml") == project(root / "python" / "pyproject.toml")
    assert f'version = "{__import__("belljar").__version__}"' in (root / "pyproject.toml").read_text()
