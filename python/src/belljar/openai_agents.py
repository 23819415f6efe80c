"""Tools for the OpenAI Agents SDK: ``Agent(…, tools=belljar.openai_agents.tools())``."""

from __future__ import annotations

from agents import Tool, function_tool

from .toolbox import COMMAND_ABOUT, COMMAND_NAME, PYTHON_ABOUT, PYTHON_NAME, Toolbox

__all__ = ["Toolbox", "tools"]


def tools(toolbox: Toolbox | None = None) -> list[Tool]:
    """Returns both tools of a toolbox."""
    box = toolbox or Toolbox()
    return [
        # Strict schemas cannot describe an object with any fields, as the arguments are.
        function_tool(box.apython, name_override=PYTHON_NAME, description_override=PYTHON_ABOUT, strict_mode=False),
        function_tool(box.acommand, name_override=COMMAND_NAME, description_override=COMMAND_ABOUT),
    ]
