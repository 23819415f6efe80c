"""Display of results: program output is never shown as markup or as terminal control sequences."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from fake import RESULT

from belljar.result import Result, read_result
from belljar.states import CommandInfo, CommandResult

PIXEL = base64.b64encode(b"\x89PNG").decode()


def result(**changes: Any) -> Result:
    return read_result({**RESULT, **changes})


def artifact(name: str, mime_type: str, content: str = PIXEL) -> dict[str, Any]:
    return {"name": name, "mime_type": mime_type, "size": 4, "content_base64": content}


def test_result_repr() -> None:
    assert repr(result()) == "<Result succeeded in 1 ms: '42\\n'>"
    failed = result(status="failed", exit_code=1, error="NameError: \x1b[2Jx", stdout="")
    assert repr(failed) == "<Result failed in 1 ms: exit code 1: NameError: \\x1b[2Jx>"


def test_command_result_repr() -> None:
    info = CommandInfo(1, 2, "ls", False, "ended", 3, None, False, 9)
    shown = CommandResult(info, "out", "\x1b[2J<b>", False, False, 4.2)
    assert repr(shown) == "<CommandResult exit code 3 in 4 ms: 'out': '\\x1b[2J<b>'>"
    bundle = shown._repr_mimebundle_()
    assert bundle["text/plain"] == repr(shown)
    assert "&lt;b&gt;" in bundle["text/html"] and "exit code 3, 4 ms" in bundle["text/html"]


def test_text_is_escaped() -> None:
    nasty = "<script>alert(1)</script>"
    shown = result(stdout=nasty, stderr=nasty, error=nasty, result={"present": True, "value": nasty})
    shown_html = shown._repr_html_()
    assert "<script>" not in shown_html
    assert shown_html.count("&lt;script&gt;") == 4
    assert "\x1b" not in result(stdout="\x1b[2J")._repr_mimebundle_()["text/plain"]


def test_pictures_are_shown() -> None:
    drawn = result(artifacts=[artifact('a".png', "image/png"), artifact("t.csv", "text/csv")])
    bundle = drawn._repr_mimebundle_()
    assert f'<img alt="a&quot;.png" style="max-width:100%" src="data:image/png;base64,{PIXEL}">' in bundle["text/html"]
    assert "t.csv (text/csv, 4 bytes)" in bundle["text/html"]
    assert "<img" in drawn.artifacts[0]._repr_mimebundle_()["text/html"]


def test_artifacts_cannot_inject_html() -> None:
    drawn = result(artifacts=[artifact("a.png", "image/png", 'x" onerror="alert(1)'), artifact("<b>", "text/html")])
    assert "onerror" not in drawn._repr_html_()
    assert "<b>" not in drawn._repr_html_()


def test_artifact_names_cannot_leave_the_folder(tmp_path: Any) -> None:
    (tmp_path / "in").mkdir()
    path = result(artifacts=[artifact("../../x.png", "image/png")]).artifacts[0].save(tmp_path / "in")
    assert path == tmp_path / "in" / "x.png"


def test_saving_artifacts_overwrites_nothing(tmp_path: Any) -> None:
    (tmp_path / "package.json").write_text("mine")
    (tmp_path / "link.json").symlink_to(tmp_path / "elsewhere")
    named = {
        name: result(artifacts=[artifact(name, "application/json")]).artifacts[0]
        for name in ("package.json", "link.json")
    }
    assert [named["package.json"].save(tmp_path).name for _ in range(2)] == ["package-2.json", "package-3.json"]
    assert named["link.json"].save(tmp_path).name == "link-2.json"
    assert (tmp_path / "package.json").read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()


def test_unknown_fields_are_accepted() -> None:
    newer = result(news=1, usage={**RESULT["usage"], "gpu": 1}, findings=[{"rule": "R", "message": "m", "new": 1}])
    assert (newer.findings[0].rule, newer.findings[0].line, newer.raw["news"]) == ("R", None, 1)


@pytest.mark.frameworks
def test_notebook() -> None:
    import nbclient
    import nbformat

    draws = """
import os
os.makedirs("artifacts", exist_ok=True)
with open("artifacts/dot.svg", "w") as file:
    file.write('<svg xmlns="http://www.w3.org/2000/svg"><circle r="4"/></svg>')
print("<b>drawn</b>")
"""
    cells = [
        "import belljar",
        f"belljar.run({draws!r}, check=True)",
        "_.artifacts[0]",
        "with belljar.Sandbox() as box: done = box.command('echo here')\ndone",
        "await belljar.arun('print(6 * 7)')",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    run, artifact, command, awaited = (cell.outputs[0].data for cell in notebook.cells[1:])
    assert "<pre" in run["text/html"] and "&lt;b&gt;drawn" in run["text/html"]
    assert '<img alt="dot.svg"' in run["text/html"] and "data:image/svg+xml;base64," in run["text/html"]
    assert run["text/plain"].startswith("<Result succeeded")
    assert artifact["text/html"].startswith('<img alt="dot.svg"')
    assert command["text/plain"].startswith("<CommandResult exit code 0")
    assert awaited["text/plain"].endswith("42")
