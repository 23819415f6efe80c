"""Tools for smolagents: ``ToolCallingAgent(tools=belljar.smolagents.tools(), …)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smolagents import Tool

from .toolbox import COMMAND_ABOUT, COMMAND_NAME, PYTHON_ABOUT, PYTHON_NAME, Toolbox

__all__ = ["Toolbox", "tools"]


_CODE = {"type": "string", "description": "The code to run."}
_ARGUMENTS = {"type": "object", "description": "Arguments for the code's function main, by name.", "nullable": True}
_COMMAND = {"type": "string", "description": "The command to run."}


class _SandboxTool(Tool):  # type: ignore[misc]
    output_type = "string"
    # The inputs are named at construction, not in the signature.
    skip_forward_signature_validation = True

    def __init__(self, function: Callable[..., str], inputs: dict[str, Any], name: str, about: str) -> None:
        self.name = name
        self.description = about
        self.inputs = inputs
        self._function = function
        super().__init__()

    def forward(self, **inputs: Any) -> str:
        return self._function(**inputs)


def tools(toolbox: Toolbox | None = None) -> list[Tool]:
    """Returns both tools of a toolbox."""
    box = toolbox or Toolbox()
    return [
        _SandboxTool(box.python, {"code": _CODE, "arguments": _ARGUMENTS}, PYTHON_NAME, PYTHON_ABOUT),
        _SandboxTool(box.command, {"command": _COMMAND}, COMMAND_NAME, COMMAND_ABOUT),
    ]
