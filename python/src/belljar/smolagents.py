"""Tools for smolagents: ``ToolCallingAgent(tools=belljar.smolagents.tools(), …)``."""

from __future__ import annotations

from collections.abc import Callable

from smolagents import Tool

from .toolbox import COMMAND_ABOUT, COMMAND_NAME, PYTHON_ABOUT, PYTHON_NAME, Toolbox

__all__ = ["Toolbox", "tools"]


class _SandboxTool(Tool):  # type: ignore[misc]
    output_type = "string"
    # The only argument is named at construction, not in the signature.
    skip_forward_signature_validation = True

    def __init__(self, function: Callable[..., str], argument: str, name: str, about: str) -> None:
        self.name = name
        self.description = about
        self.inputs = {argument: {"type": "string", "description": f"The {argument} to run."}}
        self._function = function
        super().__init__()

    def forward(self, **arguments: str) -> str:
        return self._function(**arguments)


def tools(toolbox: Toolbox | None = None) -> list[Tool]:
    """Returns both tools of a toolbox."""
    box = toolbox or Toolbox()
    return [
        _SandboxTool(box.python, "code", PYTHON_NAME, PYTHON_ABOUT),
        _SandboxTool(box.command, "command", COMMAND_NAME, COMMAND_ABOUT),
    ]
