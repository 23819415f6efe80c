"""Ids of an agent and its user, in the metadata of everything that a client runs or opens."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

import belljar
from belljar import _server

IDS = {"agent_id": "planner", "user_id": "ada"}


def belljar_prints(*arguments: str) -> str:
    """Returns what the command line prints about the private server of this process."""
    server = _server.private()
    environment = {**os.environ, "BELLJAR_SERVER": server.url, "BELLJAR_API_KEY": server.key or ""}
    return subprocess.run(
        [os.environ["BELLJAR_BIN"], *arguments], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_everything_of_a_client_has_its_ids() -> None:
    with belljar.Client(agent_id="planner", user_id="ada") as client:
        results = [
            client.run("print(1)"),
            client.stream("print(1)").result(),
            client.follow(client.submit("print(1)")).result(),
            *client.map("def main(n): return n", [{"n": 1}]),
        ]
        with belljar.Sandbox(client=client) as box:
            assert box.info().metadata == IDS
            results += [box.run("print(1)"), box.stream("print(1)").result()]
    assert [result.metadata for result in results if isinstance(result, belljar.Result)] == [IDS] * len(results)


def test_everything_of_an_async_client_has_its_ids() -> None:
    async def go() -> list[Any]:
        async with belljar.AsyncClient(agent_id="planner", user_id="ada") as client:
            results = [
                await client.run("print(1)"),
                await client.stream("print(1)").result(),
                await client.follow(await client.submit("print(1)")).result(),
                *await client.map("def main(n): return n", [{"n": 1}]),
            ]
            async with belljar.AsyncSandbox(client=client) as box:
                assert (await box.info()).metadata == IDS
                return [*results, await box.run("print(1)"), await box.stream("print(1)").result()]

    results = asyncio.run(go())
    assert [result.metadata for result in results] == [IDS] * 6


def test_metadata_of_a_call_is_added_and_wins() -> None:
    with belljar.Client(agent_id="planner", user_id="ada") as client:
        result = client.run("print(1)", metadata={"user_id": "eve", "job": 7})
        assert result.metadata == {"agent_id": "planner", "user_id": "eve", "job": 7}
        tools = belljar.Toolbox(client=client, user_id="bob")
        tools.python("print(1)")
        assert tools.results[-1].metadata == {"agent_id": "planner", "user_id": "bob"}
    with belljar.Client() as client:
        assert client.run("print(1)").metadata == {}


def test_executions_and_sandboxes_are_found_by_id() -> None:
    with belljar.Client(agent_id="finder", user_id="ada") as client, belljar.Sandbox(client=client) as box:
        id = client.run("print(1)").id
        listed = belljar_prints("executions", "list", "--metadata", "agent_id=finder")
        lines = [line.split() for line in listed.splitlines()]
        assert lines[0][-1] == "METADATA"
        assert [(line[0], line[-2:]) for line in lines[1:]] == [(id, ["agent_id=finder", "user_id=ada"])]
        assert box.id in belljar_prints("sandbox", "list", "--metadata", "agent_id=finder")
        assert id not in belljar_prints("executions", "list", "--metadata", "agent_id=other")


@pytest.mark.parametrize("wrong", ["", 7])
def test_ids_are_text(wrong: Any) -> None:
    takes_ids: list[Callable[..., Any]] = [belljar.Client, belljar.AsyncClient, belljar.Toolbox]
    for kind in takes_ids:
        with pytest.raises(ValueError, match="agent_id: must be text that is not empty"):
            kind(agent_id=wrong)
