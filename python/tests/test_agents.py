"""Runs real agents of real frameworks, with scripted models."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import belljar

PYTHON, COMMAND = "execute_python_code_in_sandbox", "run_terminal_command_in_sandbox"
CALLS: list[tuple[str, dict[str, Any]]] = [
    (PYTHON, {"code": "import socket\nprint(6 * 7, [name for _, name in socket.if_nameindex()])"}),
    (COMMAND, {"command": "echo out; echo err >&2; exit 3"}),
]


def check(box: belljar.Toolbox) -> None:
    python, command = box.results
    assert python.stdout == "42 ['lo']\n"
    assert (command.stdout, command.stderr, command.exit_code) == ("out\n", "err\n", 3)


def test_tool_answers_for_the_model(tmp_path: Path) -> None:
    box = belljar.Toolbox(files={"in.txt": "given"}, artifacts=tmp_path / "made")
    code = (
        "import os\nos.makedirs('artifacts', exist_ok=True)\nopen('artifacts/a.csv', 'w').write(open('in.txt').read())"
    )
    answer = box.python(code)
    assert answer == f"Artifact a.csv (text/csv, 5 bytes), saved as {tmp_path / 'made/a.csv'}"
    assert (tmp_path / "made/a.csv").read_text() == "given"
    assert box.command("exit 3") == "The execution did not succeed (failed): the program exited with status 3"
    assert asyncio.run(box.apython("pass")) == "The execution succeeded and printed nothing."
    long = box.python("print('x' * 50_000)")
    assert len(long) < 20_000
    assert "characters left out" in long
    assert box.command("\0").startswith("Nothing ran: ")


@pytest.mark.frameworks
def test_langchain() -> None:
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, ToolMessage

    from belljar.langchain import tools

    class Scripted(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **_: Any) -> Any:
            assert [tool.name for tool in tools] == [PYTHON, COMMAND]
            return self

    def agent(box: belljar.Toolbox) -> Any:
        messages = [AIMessage("", tool_calls=[{"name": name, "args": args, "id": name}]) for name, args in CALLS]
        return create_agent(Scripted(messages=iter([*messages, AIMessage("done")])), tools=tools(box))

    for is_async in (False, True):
        box = belljar.Toolbox()
        request = {"messages": [("user", "go")]}
        answer = asyncio.run(agent(box).ainvoke(request)) if is_async else agent(box).invoke(request)
        outputs = [message.content for message in answer["messages"] if isinstance(message, ToolMessage)]
        assert outputs[0] == "--- STDOUT ---\n42 ['lo']"
        assert str(outputs[1]).startswith("--- STDOUT ---\nout\n--- STDERR ---\nerr\nThe execution did not succeed")
        assert answer["messages"][-1].content == "done"
        check(box)


@pytest.mark.frameworks
def test_langchain_example_agent(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "agent.py"
    done = subprocess.run(
        [sys.executable, str(example), "--scripted"], cwd=tmp_path, capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    assert "best month: 2026-10" in done.stdout
    assert (tmp_path / "sales.svg").read_text().count("<rect") == 10


@pytest.mark.frameworks
def test_openai_agents() -> None:
    import agents
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    from belljar.openai_agents import tools

    responses: list[Any] = [
        ResponseFunctionToolCall(arguments=json.dumps(args), call_id=name, name=name, type="function_call")
        for name, args in CALLS
    ]
    text = ResponseOutputText(text="done", type="output_text", annotations=[])
    responses.append(
        ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
    )

    class Scripted(agents.Model):
        async def get_response(self, *_: Any, **__: Any) -> Any:
            return agents.ModelResponse(output=[responses.pop(0)], usage=agents.Usage(), response_id=None)

        def stream_response(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    agents.set_tracing_disabled(True)
    box = belljar.Toolbox()
    agent = agents.Agent(name="tester", tools=tools(box), model=Scripted())
    assert asyncio.run(agents.Runner.run(agent, "go")).final_output == "done"
    check(box)


@pytest.mark.frameworks
def test_smolagents() -> None:
    import smolagents
    from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction

    from belljar.smolagents import tools

    calls_to_make = [*CALLS, ("final_answer", {"answer": "done"})]

    class Scripted(smolagents.Model):
        def generate(self, *_: Any, **__: Any) -> Any:
            name, arguments = calls_to_make.pop(0)
            function = ChatMessageToolCallFunction(name=name, arguments=arguments)
            calls = [ChatMessageToolCall(id=name, type="function", function=function)]
            return smolagents.ChatMessage(role=smolagents.MessageRole.ASSISTANT, content="", tool_calls=calls)

    box = belljar.Toolbox()
    agent = smolagents.ToolCallingAgent(tools=tools(box), model=Scripted(), verbosity_level=0)
    assert agent.run("go") == "done"
    check(box)
