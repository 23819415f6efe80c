"""Formats results for prompts and notebooks.

Program output is shown as escaped text, never as markup, and without control characters in a prompt.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import _json

if TYPE_CHECKING:
    from .result import Artifact, Finding, Result
    from .states import CommandResult

#: Characters of each stream that are shown; the rest is in the result.
_SHOWN_CHARACTERS = 20_000
#: Findings that are shown, one line each.
_SHOWN_FINDINGS = 10
#: Image types that cannot run scripts. SVG can contain scripts, but they do not run in an ``img`` element.
_PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml"})
_MAX_PICTURE_BYTES = 8 << 20
_BASE64 = re.compile(r"[A-Za-z0-9+/=]*\Z")
_BOX = "margin:0.3em 0;white-space:pre-wrap;overflow-wrap:anywhere"


def hints(findings: Sequence[Finding], *, success: bool) -> list[str]:
    """Formats findings as lines that say what was found or denied, and what to do instead; denials come first.

    Minor findings are left out if the program succeeded.
    """
    worth = [each for each in findings if each.severity != "info" or not success]
    worth.sort(key=lambda each: each.line is not None)
    lines = [
        f"Hint: {'' if each.line is None else f'line {each.line}: '}{each.message}; {each.suggestion}"
        for each in worth[:_SHOWN_FINDINGS]
    ]
    left_out = len(worth) - len(lines)
    return [*lines, f"{left_out} more findings are left out."] if left_out else lines


def value(returned: Any) -> str:
    try:
        return repr(returned)
    except ValueError:
        # An integer has more digits than Python converts by default.
        return _json.dumps(returned)


def line(result: Result) -> str:
    """Formats a result: ``<Result succeeded in 26 ms: '42\\n'>``"""
    parts = [f"{result.status} in {result.duration_ms:.0f} ms"]
    if result.exit_code:
        parts.append(f"exit code {result.exit_code}")
    if result.error:
        parts.append(result.error)
    if result.stdout:
        parts.append(repr(_cut(result.stdout, 200)))
    if result.has_value:
        parts.append(f"value={_cut(value(result.value), 200)}")
    if result.artifacts:
        parts.append(", ".join(artifact.name for artifact in result.artifacts))
    return _escaped(f"<Result {': '.join(parts)}>")


def command_line(result: CommandResult) -> str:
    """Formats the result of a command: ``<CommandResult exit code 0 in 3 ms: 'out\\n'>``"""
    parts = [f"{result.ending} in {result.duration_ms:.0f} ms"]
    parts += [repr(_cut(text, 200)) for text in (result.stdout, result.stderr) if text]
    return _escaped(f"<CommandResult {': '.join(parts)}>")


def plain(result: Result) -> str:
    return f"{line(result)}\n{_escaped(_cut(result.text, _SHOWN_CHARACTERS))}"


def html_of(result: Result) -> str:
    parts = [_block(result.stdout, ""), _block(result.stderr, "color:#b00020")]
    if result.has_value:
        parts.append(_block(f"returned: {value(result.value)}", ""))
    if result.error:
        parts.append(_block(f"{result.status}: {result.error}", "color:#b00020;font-weight:bold"))
    parts.append(_block("\n".join(hints(result.findings, success=result.success)), ""))
    parts += [artifact(each) for each in result.artifacts]
    return _framed(parts, f"{result.status}, {result.duration_ms:.0f} ms")


def html_of_command(result: CommandResult) -> str:
    parts = [_block(result.stdout, ""), _block(result.stderr, "color:#b00020")]
    parts.append(_block("\n".join(hints(result.findings, success=result.success)), ""))
    return _framed(parts, f"{result.ending}, {result.duration_ms:.0f} ms")


def artifact(each: Artifact) -> str:
    """Shows a picture as an image, and any other artifact by its name."""
    name = html.escape(each.name, quote=True)
    can_be_shown = each.mime_type in _PICTURES and each.size <= _MAX_PICTURE_BYTES
    if can_be_shown and each.content_base64 is not None and _BASE64.match(each.content_base64):
        return f'<img alt="{name}" style="max-width:100%" src="data:{each.mime_type};base64,{each.content_base64}">'
    return f"<div>{name} ({html.escape(each.mime_type)}, {each.size} bytes)</div>"


def bundle(text: str, markup: str) -> dict[str, str]:
    return {"text/plain": text, "text/html": markup}


def _framed(parts: list[str], note: str) -> str:
    return f"<div>{''.join(parts)}<small style='opacity:0.6'>{html.escape(note)}</small></div>"


def _block(text: str, style: str) -> str:
    if not text:
        return ""
    return f'<pre style="{_BOX};{style}">{html.escape(_cut(text, _SHOWN_CHARACTERS))}</pre>'


def _escaped(text: str) -> str:
    """Escapes control characters, so that program output cannot control the terminal."""
    return "".join(each if each in "\n\t" or each.isprintable() else repr(each)[1:-1] for each in text)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"
