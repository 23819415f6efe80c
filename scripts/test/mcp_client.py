"""Tests the server with the official Python client, over both transports, with and without sessions."""

import asyncio
import base64
import os
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

TOOLS = {
    "run_code", "run_command", "sandbox_open", "sandbox_close", "read_file", "write_file", "list_files", "check_code",
}
PLOT = """
import os
os.makedirs("artifacts", exist_ok=True)
open("artifacts/plot.png", "wb").write(b"\\x89PNG\\r\\n")
def main(n):
    print(6 * n)
    return {"n": n}
"""


@asynccontextmanager
async def stdio(mode):
    command = StdioServerParameters(command=os.environ["BELLJAR_BIN"], args=["mcp"], env=dict(os.environ))
    async with Client(command, mode=mode) as client:
        yield client


@asynccontextmanager
async def http(mode):
    headers = {"Authorization": f"Bearer {os.environ['BELLJAR_ADMIN_KEY']}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as web:
        async with Client(streamable_http_client(os.environ["BELLJAR_MCP_URL"], http_client=web), mode=mode) as client:
            yield client


def alive(token):
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if token.encode() in entry.read_bytes().split(b"\0"):
                return True
        except OSError:
            pass
    return False


async def until(condition, message):
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(message)


async def drive(client, six_version, idna_version, token):
    assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS

    ran = await client.call_tool("run_code", {"language": "python", "code": PLOT, "arguments": {"n": 7}})
    result = ran.structured_content
    assert not ran.is_error and result["stdout"] == "42\n" and result["result"]["value"] == {"n": 7}, ran
    text, image = ran.content
    assert "stdout:\n42" in text.text and image.mime_type == "image/png"
    assert base64.b64decode(image.data) == b"\x89PNG\r\n"

    messages = []

    async def progress(_done, _total, message):
        messages.append(message)

    code = {"language": "python", "code": "import six; print(six.__version__)", "dependencies": [f"six=={six_version}"]}
    ran = await client.call_tool("run_code", code, progress_callback=progress)
    assert ran.structured_content["stdout"] == f"{six_version}\n", ran
    assert messages and all(messages), messages

    messages.clear()
    packages = {"dependencies": [f"idna=={idna_version}"]}
    opened = await client.call_tool("sandbox_open", packages, progress_callback=progress)
    sandbox = opened.structured_content["sandbox"]
    assert f"installing idna {idna_version}" in messages, messages
    await client.call_tool("write_file", {"sandbox": sandbox, "path": "a b.txt", "content": "kept"})
    ran = await client.call_tool("run_command", {"sandbox": sandbox, "command": "cat 'a b.txt'"})
    assert ran.structured_content["stdout"] == "kept", ran
    [file] = [one for one in (await client.list_resources()).resources if one.name == "a b.txt" and sandbox in str(one.uri)]
    assert (await client.read_resource(file.uri)).contents[0].text == "kept"

    call = asyncio.create_task(client.call_tool("run_command", {"sandbox": sandbox, "command": f"sleep {token}"}))
    await until(lambda: alive(token), "the command never started")
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await until(lambda: not alive(token), "a canceled call still runs")

    await client.call_tool("sandbox_close", {"sandbox": sandbox})
    assert (await client.call_tool("list_files", {"sandbox": sandbox})).is_error


async def main():
    packages = iter([("1.12.0", "3.4"), ("1.13.0", "3.6"), ("1.14.0", "3.7"), ("1.15.0", "3.10")])
    for number, transport in enumerate([stdio, http]):
        for mode in ["legacy", "2026-07-28"]:
            async with transport(mode) as client:
                await drive(client, *next(packages), f"63.{os.getpid()}{number}")
            print(f"python, {transport.__name__}, {mode}: passed")


asyncio.run(main())
