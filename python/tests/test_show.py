"""How results look: text of a program's is never markup, and never draws on a terminal."""

from __future__ import annotations

import base64
from typing import Any

from fake import RESULT

from belljar.result import Result, read_result

PIXEL = base64.b64encode(b"\x89PNG").decode()


def result(**changes: Any) -> Result:
    return read_result({**RESULT, **changes})


def artifact(name: str, mime_type: str, content: str = PIXEL) -> dict[str, Any]:
    return {"name": name, "mime_type": mime_type, "size": 4, "content_base64": content}


def test_a_line_in_a_prompt() -> None:
    assert repr(result()) == "<Result succeeded in 1 ms: '42\\n'>"
    failed = result(status="failed", exit_code=1, error="NameError: \x1b[2Jx", stdout="")
    assert repr(failed) == "<Result failed in 1 ms: exit code 1: NameError: \\x1b[2Jx>"


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


def test_no_attribute_is_left_by_content() -> None:
    drawn = result(artifacts=[artifact("a.png", "image/png", 'x" onerror="alert(1)'), artifact("<b>", "text/html")])
    assert "onerror" not in drawn._repr_html_()
    assert "<b>" not in drawn._repr_html_()


def test_names_of_artifacts_stay_in_their_folder(tmp_path: Any) -> None:
    (tmp_path / "in").mkdir()
    path = result(artifacts=[artifact("../../x.png", "image/png")]).artifacts[0].save(tmp_path / "in")
    assert path == tmp_path / "in" / "x.png"


def test_nothing_is_lost_to_an_artifact(tmp_path: Any) -> None:
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


def test_later_servers_may_say_more() -> None:
    said = result(news=1, usage={**RESULT["usage"], "gpu": 1}, findings=[{"rule": "R", "message": "m", "new": 1}])
    assert (said.findings[0].rule, said.findings[0].line, said.raw["news"]) == ("R", None, 1)
