"""Retries: when a call is sent again, and when it must not be."""

from __future__ import annotations

import asyncio
import json

import pytest
from fake import RESULT, Handler, serving

import belljar
from belljar._events import Lines
from belljar.errors import BY_CODE, TRY_LATER


def test_every_error_code_has_an_exception() -> None:
    from pathlib import Path

    document = json.loads((Path(__file__).parents[2] / "crates/server/openapi.json").read_text())
    assert set(document["components"]["schemas"]["Code"]["enum"]) <= set(BY_CODE)


def test_retry_if_nothing_ran() -> None:
    def answer(handler: Handler, number: int) -> None:
        handler.refuse(429, "too_many_requests", retry_after="0") if number < 3 else handler.reply(200, RESULT)

    with serving(answer) as (url, seen), belljar.Client(url, "k") as client:
        assert client.run("x").stdout == "42\n"
        assert len(seen) == 3
        assert seen[0]["authorization"] == "Bearer k"


def test_retries_and_waits_are_bounded() -> None:
    with serving(lambda handler, _: handler.refuse(429, "too_many_requests", retry_after="0")) as (url, seen):
        with belljar.Client(url, "k", retries=2) as client, pytest.raises(belljar.Busy) as busy:
            client.run("x")
        assert (len(seen), busy.value.retry_after) == (3, 0.0)
    with serving(lambda handler, _: handler.refuse(429, "too_many_requests", retry_after="3600")) as (url, seen):
        with belljar.Client(url, "k") as client, pytest.raises(belljar.Busy) as busy:
            client.run("x")
        assert (len(seen), busy.value.retry_after) == (1, 3600.0)


@pytest.mark.parametrize("code", sorted({*TRY_LATER, "setup_failed", "internal", "quota_exceeded"}))
def test_no_retry_if_something_may_have_run(code: str) -> None:
    with serving(lambda handler, _: handler.refuse(503, code, retry_after="0")) as (url, seen):
        with belljar.Client(url, "k") as client, pytest.raises(BY_CODE[code]):
            client.run("x")
        assert len(seen) == 1


@pytest.mark.parametrize("code", sorted(TRY_LATER))
def test_retry_with_an_idempotency_key(code: str) -> None:
    def answer(handler: Handler, number: int) -> None:
        handler.refuse(503, code, retry_after="0") if number < 3 else handler.reply(200, RESULT)

    with serving(answer) as (url, seen), belljar.Client(url, "k") as client:
        assert client.run("x", idempotency_key="a").success
        assert len(seen) == 3


def test_no_retry_after_a_broken_connection() -> None:
    with serving(lambda handler, _: handler.disconnect()) as (url, seen), belljar.Client(url, "k") as client:
        with pytest.raises(belljar.ConnectionFailed):
            client.run("x")
        assert len(seen) == 1


def test_retry_after_a_broken_connection_with_an_idempotency_key() -> None:
    def answer(handler: Handler, number: int) -> None:
        handler.disconnect() if number == 1 else handler.reply(200, RESULT)

    with serving(answer) as (url, seen), belljar.Client(url, "k") as client:
        assert client.run("x", idempotency_key="a").success
        assert [each["idempotency-key"] for each in seen] == ["a", "a"]

    async def run_async(url: str) -> belljar.Result:
        async with belljar.AsyncClient(url, "k") as client:
            return await client.run("x", idempotency_key="a")

    with serving(answer) as (url, seen):
        assert asyncio.run(run_async(url)).success
        assert len(seen) == 2


def test_unreachable_server_and_invalid_addresses() -> None:
    with belljar.Client("http://127.0.0.1:9", "k", retries=1) as client, pytest.raises(belljar.ConnectionFailed):
        client.run("x")
    with pytest.raises(ValueError, match="is not a URL"):
        belljar.Client("localhost:7117")
    with pytest.raises(ValueError, match="needs a server"):
        belljar.Client(api_key="k")


def test_response_that_is_not_from_belljar() -> None:
    with serving(lambda handler, _: handler.reply(502, b"<html>")) as (url, _), belljar.Client(url, "k") as client:
        with pytest.raises(belljar.ServerFailed, match="not from a belljar server"):
            client.run("x")


def _events(*events: tuple[str, object]) -> bytes:
    texts = [f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n" for name, data in events]
    return ": still running\n\n".join(texts).encode()


def test_lines_end_at_line_feeds_only() -> None:
    odd = "a\u2028b\u0085c\x0bd"
    body = _events(("output", {"stream": "stdout", "text": odd}), ("result", RESULT))
    with serving(lambda handler, _: handler.reply(200, body)) as (url, _), belljar.Client(url, "k") as client:
        stream = client.stream("x")
        assert [piece.text for piece in stream] == [odd]
        assert stream.result().stdout == "42\n"


def test_stream_that_ends_early_or_fails() -> None:
    half = _events(("output", {"stream": "stdout", "text": "a"}))
    with serving(lambda handler, _: handler.reply(200, half)) as (url, _), belljar.Client(url, "k") as client:
        with pytest.raises(belljar.ConnectionFailed, match="ended too early"):
            client.stream("x").result()
    failed = _events(("error", {"error": {"code": "setup_failed", "message": "no", "request_id": None}}))
    with serving(lambda handler, _: handler.reply(200, failed)) as (url, _), belljar.Client(url, "k") as client:
        with pytest.raises(belljar.ServerFailed):
            client.stream("x").result()


def test_lines_split_at_any_byte() -> None:
    text = b"one\ntwo\n\nthree\n"
    for cut in range(len(text) + 1):
        lines = Lines()
        assert [*lines.feed(text[:cut]), *lines.feed(text[cut:])] == [b"one", b"two", b"", b"three"], cut


def test_repr_hides_the_key() -> None:
    from belljar._server import Server

    assert "secret" not in repr(Server("http://x", "secret"))


def test_policy_findings_of_refusals() -> None:
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
