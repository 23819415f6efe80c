"""When a call is sent again, and when it must not be. Each rule has an answer that would break it."""

from __future__ import annotations

import asyncio
import json

import pytest
from fake import RESULT, Handler, serving

import belljar
from belljar._events import Lines
from belljar.errors import BY_CODE, TRY_LATER


def test_the_list_of_codes_is_whole() -> None:
    from pathlib import Path

    document = json.loads((Path(__file__).parents[2] / "crates/server/openapi.json").read_text())
    assert set(document["components"]["schemas"]["Code"]["enum"]) <= set(BY_CODE)


def test_what_nobody_ran_is_sent_again() -> None:
    def answer(handler: Handler, number: int) -> None:
        handler.refuse(429, "too_many_requests", retry_after="0") if number < 3 else handler.reply(200, RESULT)

    with serving(answer) as (url, seen), belljar.Client(url, "k") as client:
        assert client.run("x").stdout == "42\n"
        assert len(seen) == 3
        assert seen[0]["authorization"] == "Bearer k"


def test_retries_have_an_end_and_waits_a_bound() -> None:
    with serving(lambda handler, _: handler.refuse(429, "too_many_requests", retry_after="0")) as (url, seen):
        with belljar.Client(url, "k", retries=2) as client, pytest.raises(belljar.Busy) as busy:
            client.run("x")
        assert (len(seen), busy.value.retry_after) == (3, 0.0)
    with serving(lambda handler, _: handler.refuse(429, "too_many_requests", retry_after="3600")) as (url, seen):
        with belljar.Client(url, "k") as client, pytest.raises(belljar.Busy) as busy:
            client.run("x")
        assert (len(seen), busy.value.retry_after) == (1, 3600.0)


@pytest.mark.parametrize("code", sorted({*TRY_LATER, "setup_failed", "internal", "quota_exceeded"}))
def test_what_may_have_run_is_not_sent_again(code: str) -> None:
    with serving(lambda handler, _: handler.refuse(503, code, retry_after="0")) as (url, seen):
        with belljar.Client(url, "k") as client, pytest.raises(BY_CODE[code]):
            client.run("x")
        assert len(seen) == 1


@pytest.mark.parametrize("code", sorted(TRY_LATER))
def test_with_a_key_it_is(code: str) -> None:
    def answer(handler: Handler, number: int) -> None:
        handler.refuse(503, code, retry_after="0") if number < 3 else handler.reply(200, RESULT)

    with serving(answer) as (url, seen), belljar.Client(url, "k") as client:
        assert client.run("x", idempotency_key="a").success
        assert len(seen) == 3


def test_a_broken_connection_may_have_run() -> None:
    with serving(lambda handler, _: handler.hang_up()) as (url, seen), belljar.Client(url, "k") as client:
        with pytest.raises(belljar.ConnectionFailed):
            client.run("x")
        assert len(seen) == 1


def test_with_a_key_the_server_knows_it_again() -> None:
    def answer(handler: Handler, number: int) -> None:
        handler.hang_up() if number == 1 else handler.reply(200, RESULT)

    with serving(answer) as (url, seen), belljar.Client(url, "k") as client:
        assert client.run("x", idempotency_key="a").success
        assert [each["idempotency-key"] for each in seen] == ["a", "a"]

    async def awaited(url: str) -> belljar.Result:
        async with belljar.AsyncClient(url, "k") as client:
            return await client.run("x", idempotency_key="a")

    with serving(answer) as (url, seen):
        assert asyncio.run(awaited(url)).success
        assert len(seen) == 2


def test_nobody_is_there() -> None:
    with belljar.Client("http://127.0.0.1:9", "k", retries=1) as client, pytest.raises(belljar.ConnectionFailed):
        client.run("x")
    with pytest.raises(ValueError, match="is no address"):
        belljar.Client("localhost:7117")
    with pytest.raises(ValueError, match="without a server"):
        belljar.Client(api_key="k")


def test_an_answer_of_somebody_else() -> None:
    with serving(lambda handler, _: handler.reply(502, b"<html>")) as (url, _), belljar.Client(url, "k") as client:
        with pytest.raises(belljar.ServerFailed, match="none of belljar's"):
            client.run("x")


def _events(*events: tuple[str, object]) -> bytes:
    told = [f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n" for name, data in events]
    return ": still running\n\n".join(told).encode()


def test_lines_end_at_line_feeds_only() -> None:
    odd = "a\u2028b\u0085c\x0bd"
    body = _events(("output", {"stream": "stdout", "text": odd}), ("result", RESULT))
    with serving(lambda handler, _: handler.reply(200, body)) as (url, _), belljar.Client(url, "k") as client:
        stream = client.stream("x")
        assert [piece.text for piece in stream] == [odd]
        assert stream.result().stdout == "42\n"


def test_a_stream_that_breaks_off_or_fails() -> None:
    half = _events(("output", {"stream": "stdout", "text": "a"}))
    with serving(lambda handler, _: handler.reply(200, half)) as (url, _), belljar.Client(url, "k") as client:
        with pytest.raises(belljar.ConnectionFailed, match="broke off"):
            client.stream("x").result()
    failed = _events(("error", {"error": {"code": "setup_failed", "message": "no", "request_id": None}}))
    with serving(lambda handler, _: handler.reply(200, failed)) as (url, _), belljar.Client(url, "k") as client:
        with pytest.raises(belljar.ServerFailed):
            client.stream("x").result()


def test_lines_come_in_any_pieces() -> None:
    text = b"one\ntwo\n\nthree\n"
    for cut in range(len(text) + 1):
        lines = Lines()
        assert [*lines.feed(text[:cut]), *lines.feed(text[cut:])] == [b"one", b"two", b"", b"three"], cut


def test_keys_are_not_shown() -> None:
    from belljar._server import Server

    assert "secret" not in repr(Server("http://x", "secret"))


def test_a_policy_says_what_it_minds() -> None:
    finding = {"rule": "SH-WIPE-ROOT", "message": "no"}
    error = {"error": {"code": "refused", "message": "no", "request_id": "req_1", "findings": [finding]}}
    with serving(lambda handler, _: handler.reply(403, error)) as (url, _), belljar.Client(url, "k") as client:
        with pytest.raises(belljar.Refused) as refused:
            client.run("x")
        assert refused.value.findings[0].rule == "SH-WIPE-ROOT"
    refusal = {**RESULT, "status": "refused", "exit_code": None, "findings": [finding]}
    with serving(lambda handler, _: handler.reply(200, refusal)) as (url, _), belljar.Client(url, "k") as client:
        assert client.run("x").findings[0].rule == "SH-WIPE-ROOT"
        with pytest.raises(belljar.Refused) as refused:
            client.run("x", check=True)
        assert refused.value.findings[0].rule == "SH-WIPE-ROOT"
