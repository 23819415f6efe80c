"""Tools for smolagents: ``ToolCallingAgent(tools=belljar.smolagents.tools(), …)``."""

from __future__ import annotations

from collections.abc import Callable

from smolagents import Tool

from .toolbox import COMMAND_ABOUT, COMMAND_NAME, PYTHON_ABOUT, PYTHON_NAME, Toolbox

__all__ = ["Toolbox", "tools"]


class _Boxed(Tool):  # type: ignore[misc]
    output_type = "string"
    # It has one argument, whose name is said when it is made.
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
    """Both tools, as the toolbox has them."""
    box = toolbox or Toolbox()
    return [
        _Boxed(box.python, "code", PYTHON_NAME, PYTHON_ABOUT),
        _Boxed(box.command, "command", COMMAND_NAME, COMMAND_ABOUT),
    ]
