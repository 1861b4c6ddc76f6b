"""What the house promises, seen from its socket, with the model that people really get."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from homebox.wire import events
from tests.daemon.box import Box, text_of, until
from tests.house.conftest import house
from tests.house.poisoned_worker import POISON

pytestmark = pytest.mark.model
MODEL = "smollm2-135m"
QUESTION = "Explain to a ten-year-old why the sky is blue."


def complete(box: Box, prompt: Any, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 40, "temperature": 0, **fields}
    return box.http.post("/v1/completions", json=body, timeout=120)


def answer(box: Box, prompt: Any, **fields: Any) -> str:
    response = complete(box, prompt, **fields)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def words(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1000, 20_000) for _ in range(count)]


def test_a_question_gets_a_sensible_answer_and_the_second_turn_finds_the_first_in_the_cache(box: Box) -> None:
    first = box.say(
        "capital", "What is the capital of France?", key="1", options={"temperature": 0.0, "max_tokens": 30}
    )
    told = box.events(first.json()["turn"])
    assert "Paris" in text_of(told)
    second = box.say("capital", "And of Italy?", key="2", options={"temperature": 0.0, "max_tokens": 30})
    finished = box.events(second.json()["turn"])[-1]
    before = told[-1]
    assert isinstance(finished, events.Finished) and isinstance(before, events.Finished)
    # Question and answer, but for the answer's last token, which nobody has computed yet.
    known = before.usage.prompt_tokens + before.usage.completion_tokens - 1
    assert finished.usage.cached_tokens >= known // 16 * 16 >= 32
    assert finished.timing.ttft_ms is not None and finished.timing.tok_s is not None


def test_the_second_turn_finds_an_answer_in_the_cache_that_was_cut_as_no_tokeniser_cuts(box: Box) -> None:
    """A model at a high temperature spells words in odd pieces, which its tokeniser would not."""
    tokenizer = box.house.book.tokenizer
    for seed in range(1, 20):
        options = {"temperature": 2.0, "seed": seed, "max_tokens": 24, "ignore_eos": True}
        made = box.say(f"odd-{seed}", "Tell me something strange.", key="1", options=options).json()
        told = box.events(made["turn"])
        stream = box.house.book.turn(made["turn"]).choices[0].stream
        assert stream
        if "\ufffd" not in text_of(told) and tokenizer.words(text_of(told)) != stream.output:
            break
    else:
        raise AssertionError("every answer was cut as the tokeniser cuts it")
    before = told[-1]
    second = box.say(f"odd-{seed}", "And then?", key="2", options={"max_tokens": 4})
    finished = box.events(second.json()["turn"])[-1]
    assert isinstance(finished, events.Finished) and isinstance(before, events.Finished)
    known = before.usage.prompt_tokens + before.usage.completion_tokens - 1
    assert finished.usage.cached_tokens >= known // 16 * 16


def test_only_what_the_template_says_to_everybody_is_shared_between_persons(box: Box) -> None:
    def cached(person: str, content: str) -> int:
        with box.client(**{"X-Homebox-As": person}) as http:
            return int(
                box.chat(content, http, model=MODEL, max_tokens=1).json()["usage"]["prompt_tokens_details"][
                    "cached_tokens"
                ]
            )

    secret = "My PIN is four seven one one, and I keep it under the third flower pot from the left."
    assert cached("anna", secret) <= 16
    assert cached("anna", secret) >= 32, "her own words are found again"
    assert cached("ben", secret) == 16, "one block: the template's system line"


def test_a_kill_of_the_engine_in_mid_answer_is_a_pause_and_health_tells_the_truth(box: Box) -> None:
    options: dict[str, Any] = {"temperature": 0.0, "max_tokens": 60, "ignore_eos": True}
    undisturbed = text_of(box.ask(QUESTION, **options))
    restarts = box.snapshot().engine_restarts
    turn = box.detach(QUESTION, **options)
    until(lambda: box.tokens(turn) >= 15, within_s=60)
    health = box.http.get("/health")
    assert health.status_code == 200 and health.json()["state"] == "ready"
    os.kill(health.json()["engine_pid"], signal.SIGKILL)
    until(lambda: box.http.get("/health").status_code == 503, within_s=5)
    assert box.http.get("/health").json()["state"] == "restarting"
    assert box.http.get("/v1/models").status_code == 200
    told = box.events(turn)
    assert text_of(told) == undisturbed
    assert any(isinstance(event, events.EngineLost) for event in told)
    assert isinstance(told[-1], events.Finished) and told[-1].usage.completion_tokens == 60
    assert box.http.get("/health").status_code == 200
    assert box.snapshot().engine_restarts == restarts + 1


def test_a_pause_in_mid_answer_frees_the_engines_memory_and_every_answer_ends_as_if_undisturbed(
    box: Box,
) -> None:
    options: dict[str, Any] = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True}
    questions = [QUESTION, "Tell me about the moon."]
    undisturbed = [text_of(box.ask(question, **options)) for question in questions]
    turns = [box.detach(question, **options) for question in questions]
    until(lambda: all(box.tokens(turn) >= 8 for turn in turns), within_s=60)
    engine = psutil.Process(box.http.get("/health").json()["engine_pid"])
    assert engine.memory_info().rss > 300 * 2**20
    box.http.post("/homebox/pause", json={"now": True})
    until(lambda: not engine.is_running(), within_s=10)
    until(lambda: box.http.get("/health").json()["engine_pid"] is None)
    now = box.snapshot()
    assert now.engine == "paused" and now.blocks is None and sum(row.blocks for row in now.streams) == 0
    assert all(8 <= row.tokens_out < 40 for row in now.streams) and len(now.streams) == 2
    box.http.post("/homebox/resume", json={})
    told = [box.events(turn) for turn in turns]
    assert [text_of(each) for each in told] == undisturbed
    assert all(any(isinstance(event, events.Paused) for event in each) for each in told)
    assert until(box.idle, within_s=5)


def test_seeded_sampling_gives_the_same_text_alone_and_beside_seven_others(box: Box) -> None:
    mine = {"temperature": 0.8, "top_p": 0.95, "seed": 77, "max_tokens": 48, "ignore_eos": True}
    alone = answer(box, words(1, 60), **mine)
    with ThreadPoolExecutor(8) as pool:
        others = [
            pool.submit(
                answer, box, words(10 + i, 15 * i + 5), temperature=1.1, seed=i, max_tokens=30 + 8 * i
            )
            for i in range(7)
        ]
        together = pool.submit(answer, box, words(1, 60), **mine)
        assert together.result() == alone
        assert all(other.result() for other in others)


def test_bad_requests_get_clear_errors_and_a_running_answer_does_not_notice(box: Box) -> None:
    undisturbed = answer(box, words(2, 30), max_tokens=60, ignore_eos=True)
    running_one: list[str] = []
    thread = threading.Thread(
        target=lambda: running_one.append(answer(box, words(2, 30), max_tokens=60, ignore_eos=True))
    )
    thread.start()
    until(lambda: any(row["tokens_out"] for row in box.streams()), within_s=30)
    refused = {
        "a prompt over the context": (
            complete(box, words(3, 9000)),
            400,
            "maximum context length is 8192 tokens",
        ),
        "an empty prompt": (complete(box, ""), 400, "empty"),
        "10^12 tokens": (complete(box, "x", max_tokens=10**12), 400, "max_tokens"),
        "a negative top_k": (complete(box, "x", top_k=-3), 400, "top_k"),
        "an unknown model": (complete(box, "x", model="gpt-99"), 404, "gpt-99"),
        "NaN": (
            box.http.post(
                "/v1/completions",
                content=b'{"model": "%s", "prompt": "x", "temperature": NaN}' % MODEL.encode(),
                headers={"content-type": "application/json"},
            ),
            400,
            "temperature",
        ),
        "a temperature of 1e999": (
            box.http.post(
                "/v1/completions",
                content=b'{"model": "%s", "prompt": "x", "temperature": 1e999}' % MODEL.encode(),
                headers={"content-type": "application/json"},
            ),
            400,
            "temperature",
        ),
        "half a JSON": (
            box.http.post(
                "/v1/completions", content=b'{"model": ', headers={"content-type": "application/json"}
            ),
            400,
            "JSON",
        ),
    }
    for name, (response, status, said) in refused.items():
        assert response.status_code == status, (name, response.text)
        assert said in response.json()["error"]["message"], (name, response.text)
        assert "Traceback" not in response.text
    assert "9000" in refused["a prompt over the context"][0].json()["error"]["message"]
    capped = complete(box, "One, two,", max_tokens=32_000, stop=["e"])
    assert capped.status_code == 200, "32,000 is a cap and fine"
    thread.join()
    assert running_one == [undisturbed]


def test_fifty_disconnects_in_prefill_and_decode_leave_nothing_behind(box: Box) -> None:
    def leave_early(i: int) -> None:
        rng = random.Random(i)
        body = {
            "model": MODEL,
            "prompt": words(i, rng.choice([20, 150, 400])),
            "max_tokens": 400,
            "stream": True,
        }
        with (
            box.client() as http,
            http.stream("POST", "/v1/completions", json=body | {"ignore_eos": True}, timeout=120) as answer,
        ):
            assert answer.status_code == 200
            if rng.random() < 0.5:
                for _ in zip(range(rng.randrange(1, 4)), answer.iter_raw(), strict=False):
                    pass
            else:
                time.sleep(rng.random() * 0.5)  # the moment of leaving is the thing that varies

    with ThreadPoolExecutor(10) as pool:
        for done in [pool.submit(leave_early, i) for i in range(50)]:
            done.result()
    until(box.idle, within_s=1.0)


def test_the_openai_client_works_unmodified(box: Box) -> None:
    import httpx2

    transport = httpx2.HTTPTransport(uds=box.socket)
    client = OpenAI(
        api_key="unused",
        base_url="http://homebox/v1",
        http_client=httpx2.Client(transport=transport),
        max_retries=0,
    )
    assert [model.id for model in client.models.list()] == [MODEL]
    ask: dict[str, Any] = {
        "model": MODEL, "temperature": 0, "max_tokens": 20, "messages": [{"role": "user", "content": "Say hello."}],
    }  # fmt: skip
    whole = client.chat.completions.create(**ask)
    assert whole.choices[0].message.content and whole.usage and whole.usage.total_tokens > 20
    pieces = [c.choices[0].delta.content or "" for c in client.chat.completions.create(**ask, stream=True)]
    assert "".join(pieces) == whole.choices[0].message.content
    with pytest.raises(NotFoundError):
        client.chat.completions.create(**ask | {"model": "gpt-99"})
    with pytest.raises(BadRequestError, match="maximum context length"):
        client.chat.completions.create(**ask | {"messages": [{"role": "user", "content": "word " * 9000}]})


def test_a_request_that_kills_every_engine_ends_with_an_error_and_the_others_live(
    default_model: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.house.poisoned_worker"]
    with house(default_model, tmp_path, command) as box, ThreadPoolExecutor(4) as pool:

        def ask_three() -> list[Future[str]]:
            prompts = [words(20 + i, 30) for i in range(3)]
            return [pool.submit(answer, box, each, max_tokens=30, ignore_eos=True) for each in prompts]

        undisturbed = [each.result() for each in ask_three()]
        others = ask_three()
        until(lambda: sum(row["tokens_out"] > 3 for row in box.streams()) == 3, within_s=60)
        poison = pool.submit(complete, box, [5, POISON, 6])
        assert poison.result().status_code == 500
        assert "died 2 times" in poison.result().json()["error"]["message"]
        assert [other.result() for other in others] == undisturbed
        assert box.snapshot().engine_restarts == 2
        assert until(box.idle, within_s=5)
