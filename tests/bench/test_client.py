"""Does the benchmarks' client get along with servers that differ a little, and say in words where it cannot?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from homebox.bench.client import Client, Delivered, Target, base, connect
from homebox.errors import Busy, DaemonUnreachable, EngineFailed, HomeboxError, Unauthenticated, UsageError
from tests.bench.odd_server import Odd, serving

T = TypeVar("T")
ALL = frozenset(Odd.knows)


def ask(odd: Odd, what: Callable[[Client], Awaitable[T]], key: str | None = None) -> T:
    """Learn what the server takes, then do `what`."""

    async def body() -> T:
        async with serving(odd) as url, connect(Target(base(url + "/v1/"), key=key)) as client:
            await client.learn()
            return await what(client)

    return asyncio.run(body())


async def five(client: Client) -> tuple[Client, Delivered]:
    return client, await client.complete("one two three", 5)


@pytest.mark.parametrize(
    ("odd", "chat", "ignore_eos", "counted_by"),
    [
        (Odd(), False, True, "usage"),
        (Odd(chat_only=True), True, True, "usage"),
        (Odd(knows=ALL - {"ignore_eos"}), False, False, "usage"),
        (Odd(knows=ALL - {"ignore_eos", "stream_options"}, chat_only=True), True, False, "deliveries"),
        (Odd(usage=False), False, True, "deliveries"),
    ],
    ids=["all", "chat only", "no ignore_eos", "the plainest", "no usage"],
)
def test_what_a_server_takes_is_found_out_and_nothing_else_is_sent(
    odd: Odd, chat: bool, ignore_eos: bool, counted_by: str
) -> None:
    client, done = ask(odd, five)
    dialect = client.dialect
    assert (dialect.chat, dialect.ignore_eos, dialect.counted_by) == (chat, ignore_eos, counted_by)
    assert (dialect.model, client.server) == ("odd-1", "odd/0.7")
    assert done.tokens == len(done.at_s) == 5
    assert set(odd.bodies[-1]) <= odd.knows and odd.bodies[-1]["temperature"] == 0


@pytest.mark.parametrize(
    "oddity",
    [
        {"prefix": b"data:"},
        {"newline": b"\r\n"},
        {"before": b": hello\n\nevent: message\nid: 7\nretry: 10\n\n"},
        {"before": b'data: "not an object"\n\ndata: {"choices": null}\n\n'},
    ],
)
def test_events_may_be_written_in_other_ways(oddity: dict[str, Any]) -> None:
    _, done = ask(Odd(**oddity), five)
    assert (done.tokens, done.prompt_tokens, len(done.at_s)) == (5, 3, 5)


def test_a_server_that_closes_the_connections_it_keeps_did_not_go_away() -> None:
    _, done = ask(Odd(once=True), five)
    assert done.tokens == 5


def test_deliveries_have_their_times_and_gaps() -> None:
    _, done = ask(Odd(), five)
    assert done.sent_s <= done.at_s[0] and done.at_s == sorted(done.at_s) and done.at_s[-1] <= done.done_s
    assert done.ttft_s == done.at_s[0] - done.sent_s
    assert len(done.gaps_ms()) == 4
    assert len(done.gaps_ms(done.at_s[1], done.at_s[3])) == 2
    assert done.flowing.is_set()


def test_an_answer_without_text_has_its_first_text_at_its_end() -> None:
    done = Delivered(sent_s=1.0, done_s=3.0)
    assert done.ttft_s == 2.0 and done.gaps_ms() == []


def test_a_key_goes_along() -> None:
    odd = Odd()
    ask(odd, five, key="secret")
    assert odd.headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("refuses", "kind", "says"),
    [
        ((401, {"error": {"message": "who are you"}}), Unauthenticated, "who are you"),
        ((429, {"error": {"message": "slow down", "code": "busy"}}), Busy, "slow down"),
        ((429, {"detail": "later"}), Busy, "status 429: later"),
        ((500, "oops"), EngineFailed, "status 500: oops"),
        ((400, {"message": "no"}), UsageError, "status 400: no"),
    ],
)
def test_a_refusal_is_an_error_with_the_servers_words(
    refuses: tuple[int, Any], kind: type[HomeboxError], says: str
) -> None:
    with pytest.raises(kind, match=says):
        ask(Odd(refuses=refuses), five)


@pytest.mark.parametrize(
    ("breaks", "says"),
    [
        (b'data: {"error": {"message": "out of memory"}}\n\n', "out of memory"),
        (b"data: {oops\n\n", "no JSON"),
    ],
)
def test_a_failure_within_an_answer_is_an_error(breaks: bytes, says: str) -> None:
    with pytest.raises(EngineFailed, match=says):
        ask(Odd(breaks=breaks), five)


def test_nobody_there_is_said_with_the_address() -> None:
    async def body() -> None:
        async with connect(Target("http://127.0.0.1:9")) as client:
            await client.learn()

    with pytest.raises(DaemonUnreachable, match=r"127\.0\.0\.1:9"):
        asyncio.run(body())


@pytest.mark.parametrize("url", ["box:8000", "ftp://box", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        base(url)
