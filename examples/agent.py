"""A LangChain agent that plots a CSV file, and runs its code in a sandbox.

    python examples/agent.py --scripted                            without a model: its part is played from a script
    MODEL=openai:gpt-5-mini python examples/agent.py               with one, its package (langchain-openai) and its key

The sandbox has no network and sees nothing of this machine but the CSV. The drawing is saved in this folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from belljar.langchain import Toolbox, tools

TASK = (
    "sales.csv is in the current folder of your sandbox. Plot sales by month, and leave the drawing in ./artifacts. "
    "Use matplotlib where it can be imported, and write an SVG file by hand where not. Then say which month was best."
)

SCRIPT = '''
import csv, os
rows = [(row["month"], int(row["sales"])) for row in csv.DictReader(open("sales.csv"))]
bars = "".join(
    f'<rect x="{40 * i}" y="{260 - value}" width="30" height="{value}" fill="teal"><title>{month}</title></rect>'
    for i, (month, value) in enumerate(rows)
)
os.makedirs("artifacts", exist_ok=True)
with open("artifacts/sales.svg", "w") as file:
    file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {40 * len(rows)} 270">{bars}</svg>')
print("best month:", max(rows, key=lambda row: row[1])[0])
'''


class Scripted(GenericFakeChatModel):
    """A fake model with scripted answers."""

    def bind_tools(self, tools: Any, **_: Any) -> Scripted:
        return self


def scripted() -> BaseChatModel:
    call = {"name": "execute_python_code_in_sandbox", "args": {"code": SCRIPT}, "id": "call_1"}
    return Scripted(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("October 2026 was best.")]))


def main() -> None:
    model = scripted() if "--scripted" in sys.argv else os.environ.get("MODEL")
    if model is None:
        sys.exit("MODEL says which model to use, as in MODEL=openai:gpt-5-mini; --scripted does without")
    toolbox = Toolbox(files={"sales.csv": Path(__file__).with_name("sales.csv")}, artifacts=".")
    agent = create_agent(model, tools=tools(toolbox))
    for message in agent.invoke({"messages": [("user", TASK)]})["messages"]:
        message.pretty_print()


if __name__ == "__main__":
    main()
