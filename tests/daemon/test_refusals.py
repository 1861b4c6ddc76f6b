"""Is everything impossible refused in words, with the field's name, and without touching anybody else?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .box import Box, running, until

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "[[say=hello]]"}]


@pytest.fixture(scope="module")
def shared(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """With somebody's answer running all the while, which must not notice anything."""
    with running(model, tmp_path_factory.mktemp("box")) as box:
        turn = box.detach("[[forever]][[pace=20]] bystander")
        until(lambda: box.tokens(turn))
        yield box
        row = next(row for row in box.streams() if row["id"] == turn)
        assert row["state"] == "decode" and box.house.supervisor.restarts == 0
        box.http.delete(f"/homebox/turns/{turn}")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": 1e12}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_k": 10**30}, "top_k"),
        ({"min_p": -1}, "min_p"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**12}, "max_tokens"),
        ({"max_completion_tokens": -5}, "max_completion_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logit_bias": {"soup": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": "hello"}, "messages"),
    ],
)
def test_an_impossible_value_is_a_400_naming_its_field(
    shared: Box, fields: dict[str, Any], param: str
) -> None:
    answer = shared.http.post(CHAT, json={"messages": HELLO, **fields})
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert answer.headers["x-should-retry"] == "false"
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"messages": [], "temperature": NaN}', "temperature is not a finite number"),
        (b'{"messages": [], "top_p": -Infinity}', "top_p is not a finite number"),
        (b'{"messages": [', "not JSON"),
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "expected `object`"),
        (b'{"messages": [], "x": ' + b"[" * 100_000, "not JSON"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "not JSON"),
        (b"[]", "expected `object`"),
    ],
)
def test_a_body_that_is_no_json_is_a_400_that_says_so(shared: Box, body: bytes, says: str) -> None:
    answer = shared.http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and says in answer.json()["error"]["message"]


def test_too_long_a_prompt_is_refused_with_both_counts_before_the_queue(shared: Box) -> None:
    answer = shared.http.post(TEXT, json={"prompt": [5] * 1500})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["code"] == "context_length_exceeded"
    assert (
        error["message"].startswith("This model's maximum context length is 1024 tokens")
        and "1500" in error["message"]
    )
    assert shared.http.post(TEXT, json={"prompt": [5] * 1024}).status_code == 400
    last = shared.http.post(TEXT, json={"prompt": [5] * 1023}).json()
    assert last["choices"][0]["finish_reason"] == "length" and last["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("prompt", ["", [], [[]], ["x", ""]])
def test_an_empty_prompt_is_a_400(shared: Box, prompt: Any) -> None:
    answer = shared.http.post(TEXT, json={"prompt": prompt})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [99999]}, "prompt"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "best_of": 3}, "best_of"),
        ({"prompt": "x", "logprobs": 21}, "logprobs"),
        ({"prompt": ["x"] * 65}, "n"),
        ({}, "prompt"),
    ],
)
def test_impossible_completions_name_their_field(shared: Box, fields: dict[str, Any], param: str) -> None:
    answer = shared.http.post(TEXT, json=fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_an_unknown_model_is_a_404_that_names_the_one_there_is(shared: Box) -> None:
    answer = shared.http.post(CHAT, json={"messages": HELLO, "model": "gpt-9"})
    error = answer.json()["error"]
    assert answer.status_code == 404 and error["code"] == "model_not_found" and "tiny" in error["message"]
    native = shared.http.post("/homebox/ask", json={"messages": HELLO, "options": {"model": "gpt-9"}})
    assert native.status_code == 404 and native.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("path", [CHAT, "/homebox/ask"])
def test_a_body_in_another_encoding_than_it_says_is_the_clients_fault(
    shared: Box, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = shared.http.post(path, content=b"no gzip", headers=headers)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "content-encoding"
    assert not [record for record in caplog.records if record.name.startswith("homebox") and record.exc_info]


def test_a_body_that_is_not_declared_as_json_is_refused(shared: Box) -> None:
    answer = shared.http.post(CHAT, content=b"{}", headers={"content-type": "text/plain"})
    assert answer.status_code == 415 and "application/json" in answer.json()["error"]["message"]


def test_unknown_routes_and_methods_answer_in_the_dialect(shared: Box) -> None:
    for path, code in (("/v1/nothing", 404), ("/homebox/nothing", 404)):
        answer = shared.http.get(path)
        assert answer.status_code == code and answer.json()["error"]["code"] == "not_found"
    assert shared.http.get(CHAT).status_code == 405
    large = shared.http.post(CHAT, content=b"x" * (9 << 20), headers={"content-type": "application/json"})
    assert large.status_code == 413 and large.json()["error"]["code"] == "context_length_exceeded"


def test_what_the_engine_refuses_has_a_status_of_its_own_also_for_a_stream(shared: Box) -> None:
    for stream in (False, True):
        body = {
            "messages": [{"role": "user", "content": "[[refuse=context_length_exceeded]]"}],
            "stream": stream,
        }
        answer = shared.http.post(CHAT, json=body)
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"


def test_a_model_that_fails_on_one_request_fails_that_request(shared: Box) -> None:
    answer = shared.chat("[[nan]]")
    assert answer.status_code == 500 and answer.json()["error"]["code"] == "engine_failed"
    assert "not numbers" in answer.json()["error"]["message"]


def test_a_defect_inside_is_a_500_without_its_words(shared: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(shared.house.monitor, "snapshot", broken)
    answer = shared.http.get("/homebox/monitor")
    assert answer.status_code == 500 and "secret" not in answer.text and "Traceback" not in answer.text
