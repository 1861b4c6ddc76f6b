"""Is somebody over a limit told so with the right numbers, while everybody else is served?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homebox.daemon.keys import Keys
from homebox.daemon.limits import MINUTE_S, Minute
from homebox.rules import Rules
from homebox.wire import events

from .box import Box, read_events, running, state_with, until

NOON = datetime(2026, 7, 27, 12, 0).timestamp()  # a Monday, in local time
FOREVER = "[[forever]][[pace=2]]"


class Clock:
    """Wall time as the test says."""

    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def house(model: Path, tmp_path_factory: pytest.TempPathFactory, clock: Clock) -> Iterator[Box]:
    with running(
        model, tmp_path_factory.mktemp("box"), clock=clock, max_running=4, queue_per_person=8
    ) as box:
        yield box


@pytest.fixture
def anna(house: Box, clock: Clock, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """A person of this test alone, called as it is, so that nothing was used before."""
    clock.now = NOON
    with house.client(**{"X-Homebox-As": name_in(request.node)}) as client:
        yield client
    for turn in house.house.book.live:
        house.http.delete(f"/homebox/turns/{turn.id}")


def name_in(node: Any) -> str:
    return "a-" + "".join(c for c in node.name if c.isalnum())[-40:]


def name_of(client: httpx.Client) -> str:
    return client.headers["X-Homebox-As"]


def give(box: Box, client: httpx.Client, **rules: Any) -> None:
    box.house.people.set(name_of(client), rules=Rules(**rules))


def ask(client: httpx.Client, content: str, **options: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": content}], "options": options}
    return client.post("/homebox/ask", json=body)


def refused(answer: httpx.Response, status: int = 429) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    if status == 429:
        assert error["code"] == "rate_limit_exceeded" and int(answer.headers["Retry-After"]) >= 1
    return error


def others_are_served(box: Box) -> None:
    with box.client(**{"X-Homebox-As": "ben"}) as ben:
        assert ask(ben, "[[say=hello]]").status_code == 200


def test_answers_at_once(house: Box, anna: httpx.Client) -> None:
    give(house, anna, requests=2)
    turns = [house.detach(FOREVER, anna) for _ in range(2)]
    error = refused(ask(anna, "one more"))
    assert error["numbers"] == {"rule": "requests", "limit": 2, "used": 2, "asked": 1}
    others_are_served(house)
    house.http.delete(f"/homebox/turns/{turns[0]}")
    assert ask(anna, "[[say=hello]]").status_code == 200
    several = {"messages": [{"role": "user", "content": "hi"}], "n": 3}
    assert "asks for 3 more" in anna.post("/v1/chat/completions", json=several).json()["error"]["message"]


def test_requests_that_wait(house: Box, anna: httpx.Client) -> None:
    give(house, anna, queue=1)
    for _ in range(5):  # four run
        house.detach(FOREVER, anna)
    until(lambda: sum(row["state"] == "waiting" for row in house.streams()) == 1)
    answer = ask(anna, "one more")
    numbers = answer.json()["error"]["numbers"]
    assert answer.status_code == 429 and (numbers["yours"], numbers["limit"]) == (1, 1)
    with house.client(**{"X-Homebox-As": "ben"}) as ben:  # whose limit is the house's
        assert house.detach("[[say=hello]]", ben)


def test_tokens_in_a_minute(house: Box, anna: httpx.Client, clock: Clock) -> None:
    give(house, anna, tokens_per_minute=40)
    usage = read_events(ask(anna, FOREVER, max_tokens=40).content)[-1]
    assert isinstance(usage, events.Finished)
    used = usage.usage.prompt_tokens + usage.usage.completion_tokens
    clock.now += 20
    error = refused(answer := ask(anna, "more"))
    assert error["numbers"] == {"rule": "tokens_per_minute", "limit": 40, "used": used}
    assert int(answer.headers["Retry-After"]) == 40
    others_are_served(house)
    clock.now += 39
    refused(ask(anna, "more"))
    clock.now += 1
    assert ask(anna, "[[say=hello]]").status_code == 200


def test_tokens_of_a_day_end_a_running_answer_and_refuse_the_next(
    house: Box, anna: httpx.Client, clock: Clock
) -> None:
    give(house, anna, tokens_per_day=100)
    last = read_events(ask(anna, FOREVER).content)[-1]
    assert isinstance(last, events.Finished) and last.reason == "length"
    assert last.detail == "the tokens of this day are used up: 100"
    assert last.usage.prompt_tokens + last.usage.completion_tokens == 100
    error = refused(answer := ask(anna, "more"))
    assert error["numbers"] == {"rule": "tokens_per_day", "limit": 100, "used": 100}
    assert int(answer.headers["Retry-After"]) == 12 * 3600 and "12 h 0 min" in error["hint"]
    assert answer.headers["x-should-retry"] == "false"  # clients would try again within seconds
    others_are_served(house)
    clock.now += 12 * 3600
    assert ask(anna, "[[say=hello]]").status_code == 200


def test_a_prompt_that_is_longer_than_what_is_left_of_the_day_is_refused_while_it_is_read(
    house: Box, anna: httpx.Client
) -> None:
    give(house, anna, tokens_per_day=100)
    answer = house.chat("soup " * 150, anna)
    error = answer.json()["error"]
    assert answer.status_code == 429 and "100 are allowed" in error["message"]
    until(lambda: not house.house.book.live)
    assert 100 <= house.house.usage.today(name_of(anna)) < 100 + 2 * 64  # the engine reads 64 tokens a step


def test_several_answers_at_once_do_not_outrun_the_day(house: Box, anna: httpx.Client) -> None:
    give(house, anna, tokens_per_day=200)
    turns = [house.detach(FOREVER, anna) for _ in range(3)]
    until(lambda: not house.house.book.live)
    told = [read_events(anna.get(f"/homebox/turns/{turn}/events").content)[-1] for turn in turns]
    assert all(isinstance(last, events.Finished) and last.reason == "length" for last in told)
    assert 200 <= house.house.usage.today(name_of(anna)) <= 200 + len(turns)  # a step more each


def test_models(house: Box, anna: httpx.Client) -> None:
    give(house, anna, models=["small", "other"])
    error = refused(ask(anna, "hello"), 403)
    assert error["numbers"]["limit"] == ["small", "other"] and "'tiny', only small, other" in error["message"]
    assert anna.get("/v1/models").json()["data"] == [] and anna.get("/v1/models/tiny").status_code == 403
    give(house, anna, models=["tiny:latest"])
    assert ask(anna, "[[say=hello]]").status_code == 200
    assert len(anna.get("/v1/models").json()["data"]) == 1


def test_hours(house: Box, anna: httpx.Client, clock: Clock) -> None:
    give(house, anna, hours=["07:00-11:30", "sa-su 09:00-21:00"])
    error = refused(answer := ask(anna, "hello"))
    assert int(answer.headers["Retry-After"]) == 19 * 3600
    assert error["hint"] == "It is open again at 07:00 on Tuesday." and error["numbers"]["now"] == "Mon 12:00"
    others_are_served(house)
    clock.now -= 3600
    assert ask(anna, "[[say=hello]]").status_code == 200


def test_the_length_of_an_answer_whatever_is_asked_for(house: Box, anna: httpx.Client) -> None:
    give(house, anna, max_answer_tokens=7)
    last = read_events(ask(anna, FOREVER, max_tokens=50).content)[-1]
    assert isinstance(last, events.Finished)
    assert (last.reason, last.usage.completion_tokens, last.detail) == ("length", 7, "")
    choice = house.chat(FOREVER, anna).json()
    assert choice["usage"]["completion_tokens"] == 7 and choice["choices"][0]["finish_reason"] == "length"


def test_a_change_counts_from_the_next_request_on_also_one_by_another_process(
    house: Box, anna: httpx.Client
) -> None:
    from homebox.daemon.people import Household

    assert ask(anna, "[[say=hello]]").status_code == 200
    elsewhere = Household(house.house.people.path.parent)
    elsewhere.set(name_of(anna), rules=Rules(hours=["01:00-02:00"]))
    refused(ask(anna, "hello"))
    elsewhere.remove(name_of(anna))
    assert ask(anna, "[[say=hello]]").status_code == 200


def test_openais_clients_get_their_own_words(house: Box, anna: httpx.Client) -> None:
    give(house, anna, requests=3, tokens_per_minute=500)
    answer = house.chat("[[say=hello]]", anna)
    assert answer.headers["x-ratelimit-limit-requests"] == "3"
    assert answer.headers["x-ratelimit-limit-tokens"] == "500"
    assert 0 < int(answer.headers["x-ratelimit-remaining-tokens"]) < 500
    give(house, anna, tokens_per_minute=1)
    error = house.chat("hello", anna)
    assert error.status_code == 429 and set(error.json()["error"]) == {"message", "type", "param", "code"}
    assert (
        error.json()["error"]["type"] == "rate_limit_error"
        and "1 are allowed" in error.json()["error"]["message"]
    )
    assert (
        "x-should-retry" not in error.headers and "x-ratelimit-limit-requests" not in house.chat("x").headers
    )


def test_the_stock_client_raises_its_own_errors_and_does_not_try_a_used_up_day_again(
    house: Box, anna: httpx.Client
) -> None:
    with openai.OpenAI(base_url="http://box/v1", api_key="unused", http_client=anna) as client:

        def create() -> None:
            client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "[[forever]]"}]
            )

        give(house, anna, tokens_per_day=50)
        create()
        with pytest.raises(openai.RateLimitError, match="50 are allowed"):
            create()
        (row,) = anna.get("/homebox/usage?days=1").json()["usage"]
        assert (row["requests"], row["refused"], row["counted"]) == (1, 1, 50)
        give(house, anna, models=["small"])
        with pytest.raises(openai.PermissionDeniedError, match="only small"):
            create()


def test_what_counts_is_said_by_the_usage_and_a_refusal_is_counted(house: Box, anna: httpx.Client) -> None:
    give(house, anna, tokens_per_minute=10)
    ask(anna, "[[say=hello]]", max_tokens=3)
    refused(ask(anna, "more"))
    (row,) = anna.get("/homebox/usage?days=1").json()["usage"]
    assert (row["person"], row["requests"], row["refused"]) == (name_of(anna), 1, 1)
    assert row["counted"] == row["tokens_in"] - row["cached"] + row["tokens_out"] > 0
    me = anna.get("/homebox/me").json()
    assert (me["tokens_today"], me["tokens_minute"]) == (row["counted"], row["counted"])


def test_the_weight_travels_to_the_engine(house: Box, anna: httpx.Client) -> None:
    give(house, anna, weight=2.5)
    house.detach(FOREVER, anna)
    with house.client(**{"X-Homebox-As": "ben"}) as ben:
        house.detach(FOREVER, ben)
    weights = {stream.submit.person: stream.submit.weight for stream in house.house.supervisor.streams}
    assert weights == {name_of(anna): 2.5, "ben": 1.0}


def test_limits_are_of_the_person_over_all_keys_and_sockets_and_survive_a_restart(
    model: Path, tmp_path: Path
) -> None:
    state = state_with(model, tmp_path)
    keys = [Keys(state).new("anna") for _ in range(2)]
    clock = Clock()
    with running(model, state, listen="127.0.0.1:0", clock=clock) as box:
        box.house.people.set("anna", rules=Rules(tokens_per_day=200))
        spent = []
        for headers in ({"x-api-key": keys[0]}, {"Authorization": f"Bearer {keys[1]}"}):
            with box.far(**headers) as client:
                spent.append(box.chat(FOREVER, client, max_tokens=30).json()["usage"]["total_tokens"])
        with box.client(**{"X-Homebox-As": "anna"}) as local:
            assert local.get("/homebox/me").json()["tokens_today"] == sum(spent)
    with running(model, state, listen="127.0.0.1:0", clock=clock) as box:
        with box.far(**{"x-api-key": keys[0]}) as client:
            last = box.chat(FOREVER, client).json()["usage"]["total_tokens"]
            assert sum(spent) + last == 200
            assert box.chat("more", client).status_code == 429
        rows = box.http.get("/homebox/usage?all=1").json()["usage"]
        assert sum(row["counted"] for row in rows if row["person"] == "anna") == 200


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 50)), max_size=40), st.integers(1, 200))
def test_a_minute_forgets_what_is_older_and_knows_when_it_is_below(
    pauses: list[tuple[int, int]], limit: int
) -> None:
    minute, now, made = Minute(), 1000.0, []
    for pause, tokens in pauses:
        now += pause
        made.append((now, tokens))
        minute.add(now, tokens)
        assert minute.used == sum(tokens for at, tokens in made if at + MINUTE_S > now)
    if minute.used >= limit:
        later = now + minute.below_in_s(limit, now)
        assert sum(tokens for at, tokens in made if at + MINUTE_S > later) < limit
        assert sum(tokens for at, tokens in made if at + MINUTE_S > later - 1) >= limit


def test_a_clock_that_is_put_back_locks_nobody_out_of_a_minute() -> None:
    minute = Minute()
    minute.add(10_000.0, 500)
    minute.forget(9_990.0)
    assert minute.used == 500, "a few seconds forgive nothing"
    minute.forget(10_000.0 - 7200)
    assert minute.used == 0
    minute.add(10_000.0 - 7200, 5)
    assert minute.used == 5 and minute.below_in_s(5, 10_000.0 - 7200) == MINUTE_S
