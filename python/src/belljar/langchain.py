"""Tools for LangChain agents: ``create_agent(model, tools=belljar.langchain.tools())``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from langchain_core.tools import BaseTool, StructuredTool

from .toolbox import COMMAND_ABOUT, COMMAND_NAME, PYTHON_ABOUT, PYTHON_NAME, Toolbox

__all__ = ["Toolbox", "tools"]


def tools(toolbox: Toolbox | None = None) -> list[BaseTool]:
    """Returns both tools of a toolbox."""
    box = toolbox or Toolbox()
    return [
        _tool(box.python, box.apython, PYTHON_NAME, PYTHON_ABOUT),
        _tool(box.command, box.acommand, COMMAND_NAME, COMMAND_ABOUT),
    ]


def _tool(function: Callable[..., str], coroutine: Callable[..., Awaitable[str]], name: str, about: str) -> BaseTool:
    return StructuredTool.from_function(function, coroutine=coroutine, name=name, description=about)
