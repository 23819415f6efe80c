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
    (PYTHON, {"code": "def main(n, of): return [n * n, of]", "arguments": {"n": 10**20, "of": "ü"}}),
    (PYTHON, {"code": "open('/etc/motd', 'w')"}),
    (COMMAND, {"command": "rm -rf --no-preserve-root /"}),
]


def check(box: belljar.Toolbox, answers: list[str]) -> None:
    """Checks what ran, and what the model was told."""
    python, command, called, _, refused = box.results
    assert python.stdout == "42 ['lo']\n"
    assert (command.stdout, command.stderr, command.exit_code) == ("out\n", "err\n", 3)
    assert called.value == [10**40, "ü"]
    assert refused.status == "refused"
    assert all(result.metadata == {"agent_id": "planner", "user_id": "ada"} for result in box.results)
    first, second, third, fourth, fifth = answers
    assert first == "--- STDOUT ---\n42 ['lo']"
    assert second.startswith("--- STDOUT ---\nout\n--- STDERR ---\nerr\nThe execution did not succeed (failed): ")
    assert second.endswith("\nExit code: 3")
    assert third == f'--- RETURN VALUE ---\n[{10**40}, "ü"]'
    assert "\nHint: '/etc/motd' could not be written: the sandbox's root is read-only; write below /workspace" in fourth
    assert "(refused): Security validation failed: " in fifth
    assert "\nHint: `rm` would delete the whole system; name the directory to delete" in fifth


def toolbox() -> belljar.Toolbox:
    return belljar.Toolbox(agent_id="planner", user_id="ada")


def test_tool_answers_for_the_model(tmp_path: Path) -> None:
    box = belljar.Toolbox(files={"in.txt": "given"}, artifacts=tmp_path / "made")
    code = (
        "import os\nos.makedirs('artifacts', exist_ok=True)\nopen('artifacts/a.csv', 'w').write(open('in.txt').read())"
    )
    answer = box.python(code)
    assert answer == f"Artifact a.csv (text/csv, 5 bytes), saved as {tmp_path / 'made/a.csv'}"
    assert (tmp_path / "made/a.csv").read_text() == "given"
    assert box.command("exit 3").splitlines() == [
        "The execution did not succeed (failed): the program exited with status 3",
        "Exit code: 3",
    ]
    assert asyncio.run(box.apython("pass")) == "The execution succeeded and printed nothing."
    long = box.python("print('x' * 50_000)")
    assert len(long) < 20_000
    assert "characters left out" in long
    assert box.command("\0").startswith("Nothing ran: ")


def test_terminal_tool_always_returns_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("belljar.toolbox._COMMAND_SECONDS", 1.0)
    box = belljar.Toolbox()
    commands = {
        "true": "0",
        "echo out; exit 7": "7",
        "kill -9 $$": "none (killed by SIGKILL)",
        "sleep 60": "none (timed_out)",
        "rm -rf --no-preserve-root /": "none (refused)",
    }
    for command, code in commands.items():
        answers = [box.command(command), asyncio.run(box.acommand(command))]
        assert all(f"Exit code: {code}" in answer.splitlines() for answer in answers), answers
    assert "Exit code" not in box.python("raise SystemExit(3)")


def test_python_tool_calls_main_with_arguments() -> None:
    box = belljar.Toolbox()
    code = "def main(digits):\n    print('called')\n    return 10**digits"
    answers = [box.python(code, {"digits": 5_000}), asyncio.run(box.apython(code, {"digits": 5_000}))]
    assert answers == [f"--- STDOUT ---\ncalled\n--- RETURN VALUE ---\n1{'0' * 5_000}"] * 2
    assert box.results[0].text == f"called\nreturned: 1{'0' * 5_000}"
    assert box.python("def main(): return None", {}) == "--- RETURN VALUE ---\nnull"
    assert "main" in box.python("print(1)", {"n": 1})
    # A model can send NaN.
    assert box.python(code, {"digits": float("nan")}).startswith("Nothing ran: arguments.digits is nan")
    assert box.python(code, {"digits": [float("inf")]}).startswith("Nothing ran: arguments.digits[0] is inf")
    # Half of a surrogate pair, which no encoding has.
    assert asyncio.run(box.apython("print('\ud800')")).startswith("Nothing ran: ")


def test_findings_are_in_every_text_for_a_model(box: belljar.Sandbox) -> None:
    hint = "Hint: '/etc/motd' could not be written: the sandbox's root is read-only; "
    write = "echo x > /etc/motd"
    texts = [
        belljar.Toolbox().command(write),
        belljar.run(command=write).text,
        box.command(write).text,
        box.run(write, language="bash").text,
    ]
    assert all(hint in text for text in texts), texts
    assert "&#x27;/etc/motd&#x27; could not be written" in belljar.run(command=write)._repr_html_()
    # A finding about a program that succeeded, too.
    left_out = "import os\nos.symlink('/etc/passwd', 'artifacts/a')"
    assert "Hint: " in belljar.Toolbox().python(left_out)


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
        calls = [{"name": name, "args": args, "id": f"call_{n}"} for n, (name, args) in enumerate(CALLS)]
        messages = [AIMessage("", tool_calls=[call]) for call in calls]
        return create_agent(Scripted(messages=iter([*messages, AIMessage("done")])), tools=tools(box))

    for is_async in (False, True):
        box = toolbox()
        request = {"messages": [("user", "go")]}
        answer = asyncio.run(agent(box).ainvoke(request)) if is_async else agent(box).invoke(request)
        assert answer["messages"][-1].content == "done"
        check(box, [str(message.content) for message in answer["messages"] if isinstance(message, ToolMessage)])


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
        ResponseFunctionToolCall(arguments=json.dumps(args), call_id=f"call_{n}", name=name, type="function_call")
        for n, (name, args) in enumerate(CALLS)
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
    box = toolbox()
    agent = agents.Agent(name="tester", tools=tools(box), model=Scripted())
    done = asyncio.run(agents.Runner.run(agent, "go"))
    assert done.final_output == "done"
    check(box, [item.output for item in done.new_items if isinstance(item, agents.ToolCallOutputItem)])


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
            calls = [ChatMessageToolCall(id=f"call_{len(calls_to_make)}", type="function", function=function)]
            return smolagents.ChatMessage(role=smolagents.MessageRole.ASSISTANT, content="", tool_calls=calls)

    box = toolbox()
    agent = smolagents.ToolCallingAgent(tools=tools(box), model=Scripted(), verbosity_level=0)
    assert agent.run("go") == "done"
    steps = [step for step in agent.memory.steps if isinstance(step, smolagents.ActionStep)]
    check(box, [step.observations for step in steps[:-1]])
