"""Runs in fresh sandboxes: results, and which failures raise."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import belljar
from belljar._request import Network


def test_run() -> None:
    result = belljar.run("print(6 * 7)")
    assert (result.success, result.status, result.exit_code) == (True, "succeeded", 0)
    assert result.stdout == result.output == "42\n"
    assert result.text == "42"
    assert result.receipt is not None
    assert "seccomp" in result.receipt.isolation
    assert result.usage.cpu_ms > 0
    assert result.raw["stdout"] == "42\n"


def test_integers_are_exact_whatever_their_size(tmp_path: Path) -> None:
    code = "import math\ndef main(n): return [n, -n, math.factorial(25), 10**20000 + 7, 0.1, 'x']"
    wanted = [10**30, -(10**30), 15511210043330985984000000, 10**20000 + 7, 0.1, "x"]
    result = belljar.run(code, arguments={"n": 10**30})
    assert (result.value, type(result.value[0])) == (wanted, int)
    assert belljar.Playground(tmp_path).run(code, arguments={"n": 10**30}).value == wanted


def test_what_json_does_not_have_is_an_error_with_its_path() -> None:
    result = belljar.run("def main(): return {'scores': [1, float('nan')]}", arguments={})
    assert (result.status, result.has_value) == ("failed", False)
    assert result.error is not None
    assert result.error.startswith("TypeError: result.scores[1] is NaN")
    with pytest.raises(ValueError, match=r"arguments\.x\[1\]\.y is nan, which JSON does not have"):
        belljar.run("def main(x): return x", arguments={"x": [1, {"y": float("nan")}]})


def test_arun() -> None:
    async def both() -> list[belljar.Result]:
        return list(await asyncio.gather(belljar.arun("print(1)"), belljar.arun("echo 2", language="bash")))

    assert [result.stdout for result in asyncio.run(both())] == ["1\n", "2\n"]


def test_all_options(client: belljar.Client, tmp_path: Path) -> None:
    (tmp_path / "local.csv").write_text("a,b\n")
    code = """
import os, sys
def main(n):
    with open("artifacts/out.csv", "w") as file:
        file.write(open("local.csv").read())
    return {"n": n, "env": os.environ["NAME"], "stdin": sys.stdin.read(), "raw": list(open("raw", "rb").read())}
"""
    result = client.run(
        code,
        arguments={"n": 7},
        env={"NAME": "Ada"},
        stdin="typed",
        files={"local.csv": tmp_path / "local.csv", "raw": b"\xff\x00"},
        memory="256M",
        timeout=20,
        cpus=1.0,
        disk="50M",
        processes=32,
        output="64k",
        network=False,
        metadata={"who": "me"},
        check=True,
    )
    assert result.has_value
    assert result.value == {"n": 7, "env": "Ada", "stdin": "typed", "raw": [255, 0]}
    assert result.metadata == {"who": "me"}
    (artifact,) = result.artifacts
    assert (artifact.name, artifact.bytes) == ("out.csv", b"a,b\n")
    saved = artifact.save(tmp_path)
    assert (saved.name, saved.read_bytes()) == ("out.csv", b"a,b\n")


def test_large_artifacts_are_fetched(client: belljar.Client) -> None:
    code = "open('artifacts/large.bin', 'wb').write(b'x' * (6 << 20)); open('artifacts/small', 'w').write('s')"
    result = client.run(code, check=True)
    large, small = result.artifacts
    assert (large.content_base64, small.url, small.bytes) == (None, None, b"s")
    with pytest.raises(belljar.BelljarError, match="download"):
        _ = large.bytes
    assert client.download(large).bytes == b"x" * (6 << 20)
    assert client.download(small) is small

    async def fetched() -> int:
        async with belljar.AsyncClient() as other:
            artifact = (await other.run(code, check=True)).artifacts[0]
            return len((await other.download(artifact)).bytes)

    assert asyncio.run(fetched()) == 6 << 20


def test_network_modes(client: belljar.Client) -> None:
    modes: dict[str, Network] = {
        "none": False,
        "internet": True,
        "hosts": ["pypi.org"],
        "full": "full",
    }
    for mode, network in modes.items():
        receipt = client.run(command=["true"], network=network).receipt
        assert receipt is not None
        assert receipt.network is not None
        assert receipt.network["mode"] == mode
        assert ("gate" in receipt.network["enforced_by"]) == (mode in ("hosts", "internet"))
    near = "import urllib.request; urllib.request.urlopen('http://169.254.169.254/')"
    (finding,) = client.run(near, network="internet").findings
    assert "network 'internet' reaches public addresses only" in finding.message
    with pytest.raises(ValueError, match="'internet'"):
        client.run("1", network="pypi.org")


def test_output_that_is_not_utf8(client: belljar.Client) -> None:
    result = client.run(command=["printf", r"\377a"])
    assert result.stdout_bytes == b"\xffa"
    assert client.run(b"print('bytes')").stdout_bytes == b"bytes\n"


def test_failures_raise_only_with_check(client: belljar.Client) -> None:
    result = client.run("raise SystemExit(3)")
    assert (result.success, result.exit_code) == (False, 3)
    with pytest.raises(belljar.ProgramFailed) as raised:
        result.raise_for_status()
    assert raised.value.result is result
    with pytest.raises(belljar.ProgramFailed):
        client.run("1 / 0", check=True)


def test_a_result_unpacks_like_a_tuple(client: belljar.Client) -> None:
    stdout, stderr, exit_code = client.run("import sys; print('out'); sys.exit('err')")
    assert (stdout, stderr, exit_code) == ("out\n", "err\n", 1)
    with belljar.Sandbox(client=client) as box:
        stdout, stderr, exit_code = box.command("echo out; echo err >&2; exit 1")
    assert (stdout, stderr, exit_code) == ("out\n", "err\n", 1)


def test_timeout_and_limit_exceptions(client: belljar.Client) -> None:
    with pytest.raises(belljar.SandboxTimeout) as slow:
        client.run("while True: pass", timeout=0.3, check=True)
    assert isinstance(slow.value, TimeoutError)
    with pytest.raises(belljar.LimitExceeded) as fat:
        client.run("x = 'x' * 10**9", memory="64M", check=True)
    assert isinstance(fat.value.result, belljar.Result)
    assert fat.value.result.limit == "memory"


def test_policy_refuses_code_and_commands(client: belljar.Client) -> None:
    code = "import os\nos.system('rm -rf /')"
    result = client.run(code, policy="strict")
    assert (result.status, result.receipt) == ("refused", None)
    assert result.findings[0].line == 2
    with pytest.raises(belljar.Refused) as refused:
        client.run(code, policy="strict", check=True)
    assert refused.value.findings == result.findings
    with belljar.Sandbox(client=client, policy="strict") as box, pytest.raises(belljar.Refused) as command:
        box.command("rm -rf /")
    assert command.value.findings[0].rule == "SH-WIPE-ROOT"


def test_invalid_requests(client: belljar.Client) -> None:
    with pytest.raises(belljar.InvalidRequest) as language:
        client.run("x", language="latin")
    assert language.value.code == "unknown_language"
    assert language.value.request_id is not None
    with pytest.raises(belljar.InvalidRequest):
        client.run("x", timeout=-1)
    with pytest.raises(belljar.NotFound):
        client.get("exec_00000000000000000000000000")
    with pytest.raises(TypeError, match="unknown option 'tiemout'"):
        client.run("x", tiemout=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="not both"):
        client.run("x", command="y")
    with pytest.raises(ValueError, match="is not a size"):
        client.run("x", memory="lots")


def test_wrong_key() -> None:
    from belljar import _server

    with belljar.Client(_server.private().url, "a-key-that-opens-nothing-at-all-here") as client:
        with pytest.raises(belljar.AuthenticationError):
            client.run("x")


def test_execute_code() -> None:
    result = belljar.execute_code(
        code="import json\nprint(json.load(open('context.json'))['x'] + 1)",
        language="python",
        context={"x": 1},
        timeout=10,
    )
    assert (result.success, result.status, result.output, result.error) == (True, "succeeded", "2\n", None)
    assert belljar.execute_code("exit 4", "bash").exit_code == 4
    code = "import json\ndef main(n): return [n, json.load(open('context.json'))['x']]"
    called = belljar.execute_code(code, context={"x": 1}, arguments={"n": 10**30}, agent_id="planner", user_id="ada")
    awaited = asyncio.run(
        belljar.aexecute_code(code, context={"x": 1}, arguments={"n": 10**30}, agent_id="planner", user_id="ada")
    )
    for result in (called, awaited):
        assert result.value == [10**30, 1]
        assert result.text == f"returned: [{10**30}, 1]"
        assert result.metadata == {"agent_id": "planner", "user_id": "ada"}
    assert asyncio.run(belljar.aexecute_code("cat context.json", "bash", context={"x": 1})).output == '{"x": 1}'


def test_stream_yields_output_as_it_is_written(client: belljar.Client) -> None:
    # The second line is written only after the first one has been received here.
    with belljar.Sandbox(client=client) as box:
        code = (
            "import os, time\nprint('one', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('two')"
        )
        with box.stream(code) as stream:
            first = next(stream)
            assert (first.stream, first.text.strip()) == ("stdout", "one")
            box.files.write("go", "")
            assert "two" in "".join(piece.text for piece in stream)
            assert stream.result().success


def test_closing_a_stream_cancels_its_run(client: belljar.Client) -> None:
    with client.stream("import time\nprint('here', flush=True)\ntime.sleep(60)", metadata={"let": "go"}) as stream:
        next(stream)
    deadline = time.monotonic() + 20
    while True:
        pages = client._transport.send(_list("metadata.let", "go"))
        if pages and all(each["status"] == "cancelled" for each in pages):
            break
        assert time.monotonic() < deadline, pages
        time.sleep(0.05)


def _list(key: str, value: str) -> belljar._http.Call[list[dict[str, str]]]:
    from belljar._http import Call

    return Call("GET", "/v1/executions", lambda response: list(response.json()["executions"]), params={key: value})


def test_module_level_stream() -> None:
    stream = belljar.stream("print('a')\nprint('b')")
    assert "".join(piece.text for piece in stream) == "a\nb\n"
    assert stream.result().stdout == "a\nb\n"


def test_async_streams() -> None:
    async def read_all(stream: belljar.AsyncStream[belljar.Output, belljar.Result]) -> tuple[str, str]:
        text = "".join([piece.text async for piece in stream])
        return text, (await stream.result()).stdout

    async def go() -> list[tuple[str, str]]:
        async with belljar.AsyncClient() as client, client.stream("print('a')") as stream:
            return [await read_all(stream), await read_all(belljar.astream("print('b')"))]

    assert asyncio.run(go()) == [("a\n", "a\n"), ("b\n", "b\n")]


def test_map_keeps_the_order(client: belljar.Client) -> None:
    code = "import time\ndef main(n):\n    time.sleep(0.05 * (3 - n % 4))\n    return n * n"
    results = client.map(code, [{"n": n} for n in range(8)])
    assert [result.value for result in results if isinstance(result, belljar.Result)] == [n * n for n in range(8)]
    awaited = asyncio.run(belljar.amap(code, [{"n": n} for n in range(4)], jobs=2))
    assert [result.value for result in awaited if isinstance(result, belljar.Result)] == [0, 1, 4, 9]


def test_map_with_a_request_that_cannot_run(client: belljar.Client) -> None:
    with pytest.raises(belljar.InvalidRequest):
        client.map("def main(): pass", [{}], language="latin")
    (error,) = client.map("def main(): pass", [{}], language="latin", return_exceptions=True)
    assert isinstance(error, belljar.InvalidRequest)


def test_map_sends_many_sets_in_groups(client: belljar.Client) -> None:
    results = client.map("echo -n $n", ({"n": n} for n in range(503)), language="bash")
    assert [result.stdout for result in results if isinstance(result, belljar.Result)] == [str(n) for n in range(503)]


def test_map_with_one_set_that_cannot_run(client: belljar.Client) -> None:
    sets = [{"n": 1}, {"not a name": 2}, {"n": 3}]
    results = client.map("echo -n $n", sets, language="bash", return_exceptions=True)
    assert [str(getattr(result, "stdout", result)) for result in results][::2] == ["1", "3"]
    assert isinstance(results[1], belljar.InvalidRequest)
    assert "cannot be the name of a variable" in str(results[1])
    with pytest.raises(belljar.InvalidRequest):
        client.map("echo -n $n", sets, language="bash")
    awaited = asyncio.run(belljar.amap("echo -n $n", sets, language="bash", return_exceptions=True))
    assert [isinstance(each, belljar.InvalidRequest) for each in awaited] == [False, True, False]


def test_idempotency_key_runs_once(client: belljar.Client) -> None:
    code = "import random\nprint(random.random())"
    first, again = (client.run(code, idempotency_key="once-and-no-more") for _ in range(2))
    assert (first.id, first.stdout) == (again.id, again.stdout)
    with pytest.raises(belljar.Conflict):
        client.run("print(2)", idempotency_key="once-and-no-more")


def test_submit_follow_and_cancel(client: belljar.Client) -> None:
    id = client.submit("import time\nprint('a', flush=True)\ntime.sleep(60)")
    stream = client.follow(id)
    assert next(stream).text == "a\n"
    assert client.get(id).status == "running"
    assert client.cancel(id).status == "cancelled"
    assert stream.result().status == "cancelled"


def test_a_stored_execution_is_deleted(client: belljar.Client) -> None:
    id = client.run("print(1)").id
    with pytest.raises(belljar.Conflict):
        client.cancel(id)
    assert client.get(id).status == "succeeded"
    client.delete_execution(id)
    with pytest.raises(belljar.NotFound):
        client.get(id)
