"""Does OpenAI's own client, unmodified, find everything where it expects it?"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from homebox.daemon.keys import Keys

from .box import Box, running, state_with, until


@pytest.fixture(scope="module")
def shared(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with running(model, tmp_path_factory.mktemp("box")) as box:
        yield box


@pytest.fixture
def client(shared: Box) -> Iterator[openai.OpenAI]:
    transport = httpx2.HTTPTransport(uds=shared.socket, verify=False)
    with openai.OpenAI(
        base_url="http://box/v1",
        api_key="none",
        http_client=httpx2.Client(transport=transport),
        max_retries=0,
    ) as client:
        yield client


def user(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


def lines(box: Box, path: str, body: dict[str, Any]) -> list[Any]:
    """The data of each event; the last is the text [DONE]."""
    response = box.http.post(path, json={"stream": True, **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream"
    assert response.text.endswith("\n\n")
    out = []
    for part in response.text.removesuffix("\n\n").split("\n\n"):
        data = part.removeprefix("data: ")
        out.append(data if data == "[DONE]" else msgspec.json.decode(data))
    return out


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    listed = client.models.list().data
    assert [(one.id, one.object, one.owned_by) for one in listed] == [("tiny", "model", "homebox")]
    assert client.models.retrieve("tiny").created == listed[0].created
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/other:7b")


def test_a_chat_answer_has_the_whole_shape(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=user("[[say=hello_there]]"))
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion" and answer.model == "tiny"
    choice = answer.choices[0]
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "stop", "assistant")
    assert choice.message.content == "hello there" and choice.logprobs is None
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_begins_with_the_role_and_ends_with_the_reason_and_usage(shared: Box) -> None:
    body = {"messages": user("[[say=hello_there]]"), "stream_options": {"include_usage": True}}
    *chunks, usage, done = lines(shared, "/v1/chat/completions", body)
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "hello there"
    assert all(c["usage"] is None and c["choices"][0]["finish_reason"] is None for c in chunks[:-1])
    assert len({c["id"] for c in [*chunks, usage]}) == 1 and {c["object"] for c in chunks} == {
        "chat.completion.chunk"
    }
    assert usage["choices"] == [] and {"prompt_tokens", "completion_tokens", "total_tokens"} <= set(
        usage["usage"]
    )


def test_without_include_usage_no_chunk_is_without_choices(shared: Box) -> None:
    *chunks, _ = lines(shared, "/v1/chat/completions", {"messages": user("[[say=hello]]")})
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


def test_a_chunk_a_step_reaches_a_reader_who_keeps_up(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=user("[[forever]][[pace=30]]"), max_tokens=12, stream=True
    )
    chunks = [
        chunk.choices[0].delta.content for chunk in stream if chunk.choices and chunk.choices[0].delta.content
    ]
    assert len(chunks) >= 8


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_answer_and_frees_the_engine(shared: Box, stream: bool) -> None:
    body = {"messages": user("[[say=one_two_three_four]]"), "stop": [" three", "zzz"]}
    if stream:
        chunks = lines(shared, "/v1/chat/completions", body)[:-1]
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        reason = chunks[-1]["choices"][0]["finish_reason"]
    else:
        choice = shared.http.post("/v1/chat/completions", json=body).json()["choices"][0]
        text, reason = choice["message"]["content"], choice["finish_reason"]
    assert (text, reason) == ("one two", "stop")
    until(shared.idle)


def test_text_that_only_looks_like_a_stop_is_not_lost(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=user("[[say=one_two_th]]"), stop=" three")
    assert answer.choices[0].message.content == "one two th"


def test_length_is_said(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=user("[[forever]]"), max_completion_tokens=7
    )
    assert (
        answer.choices[0].finish_reason == "length" and answer.usage and answer.usage.completion_tokens == 7
    )


def test_max_tokens_above_what_is_left_is_a_cap(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=user("[[forever]]"), max_tokens=32000)
    assert answer.choices[0].finish_reason == "length" and answer.usage and answer.usage.total_tokens == 1024


def test_a_seed_decides_and_each_choice_differs(client: openai.OpenAI) -> None:
    def texts(seed: int, n: int) -> list[str | None]:
        answer = client.chat.completions.create(
            model="tiny", messages=user("[[forever]]"), max_tokens=8, seed=seed, n=n, temperature=1
        )
        assert [choice.index for choice in answer.choices] == list(range(n))
        return [choice.message.content for choice in answer.choices]

    three = texts(1, 3)
    assert (
        len(set(three)) == 3
        and texts(1, 3) == three
        and texts(1, 1) == three[:1]
        and texts(2, 1) != three[:1]
    )


def test_choices_of_a_stream_are_told_apart(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=user("[[forever]]"), max_tokens=6, seed=5, n=2, temperature=1, stream=True
    )
    texts, ends = {0: "", 1: ""}, []
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends += [choice.index] if choice.finish_reason == "length" else []
    whole = client.chat.completions.create(
        model="tiny", messages=user("[[forever]]"), max_tokens=6, seed=5, n=2, temperature=1
    )
    assert [texts[0], texts[1]] == [choice.message.content for choice in whole.choices] and sorted(ends) == [
        0,
        1,
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_chat_logprobs_cover_each_token_once(client: openai.OpenAI, stream: bool) -> None:
    options: dict[str, Any] = {
        "model": "tiny", "messages": user("[[say=hello_there]]"), "logprobs": True, "top_logprobs": 3,
    }  # fmt: skip
    if stream:
        content = [
            token
            for chunk in client.chat.completions.create(stream=True, **options)
            for token in (chunk.choices[0].logprobs.content or [] if chunk.choices[0].logprobs else [])
        ]
    else:
        logprobs = client.chat.completions.create(**options).choices[0].logprobs
        content = list(logprobs.content or []) if logprobs else []
    assert "".join(token.token for token in content) == "hello there"
    assert all(bytes(token.bytes or []).decode() == token.token for token in content)
    assert all(len(token.top_logprobs) == 3 and math.isfinite(token.logprob) for token in content)


def test_tokens_of_a_stop_string_have_no_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=user("[[say=one_two_three]]"), logprobs=True, stop=" three"
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs and logprobs.content
    assert (
        "".join(token.token for token in logprobs.content) == "one two" == answer.choices[0].message.content
    )


def test_thoughts_are_apart_from_the_content(shared: Box) -> None:
    message = shared.chat("[[say=<think>hm</think>yes]]").json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "yes")
    chunks = lines(shared, "/v1/chat/completions", {"messages": user("[[say=<think>hm</think>yes]]")})[:-1]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
    assert "".join(delta.get("content", "") for delta in deltas) == "yes"


def test_roles_parts_and_unknown_fields_are_understood(shared: Box) -> None:
    body = {
        "model": "tiny:latest",
        "messages": [
            {"role": "developer", "content": "be kind", "name": "dev"},
            {"role": "user", "content": [{"type": "text", "text": "[[say="}, {"type": "text", "text": "hi]]"}]},
            {"role": "user", "content": "[[say=hello]]"},
        ],
        "metadata": {"a": 1}, "store": True, "user": "x", "verbosity": "low", "prompt_cache_key": "k",
        "tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "reasoning_effort": "low",
    }  # fmt: skip
    answer = shared.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"] == "hello"


def test_a_last_assistant_message_is_continued(shared: Box) -> None:
    body = {"messages": [*user("[[say=there]]"), {"role": "assistant", "content": "hello "}]}
    used = shared.http.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"]
    asked = shared.chat("[[say=there]]").json()["usage"]["prompt_tokens"]
    assert used == asked + len(shared.house.book.tokenizer.encode("hello "))


def test_an_end_token_that_is_ignored_ends_nothing(shared: Box) -> None:
    answer = shared.chat("[[say=hello]]", ignore_eos=True, max_tokens=20).json()
    assert answer["choices"][0]["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == 20


def test_what_somebody_types_never_becomes_a_control_token(shared: Box) -> None:
    plain, typed = (
        shared.chat(text, max_tokens=1).json()["usage"]["prompt_tokens"] for text in ("x", "x<|im_end|>")
    )
    assert typed > plain + 1


# ---- plain completions


def test_a_completion_has_the_whole_shape(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="[[say=hello_there]]")
    assert answer.id.startswith("cmpl-") and answer.object == "text_completion"
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason, choice.logprobs) == ("hello there", "stop", None)


def test_a_completion_streams_text(client: openai.OpenAI) -> None:
    stream = client.completions.create(model="tiny", prompt="[[say=hello_there]]", stream=True)
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "hello there"
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_completion_logprobs_and_echo_line_up_with_the_text(client: openai.OpenAI, stream: bool) -> None:
    prompt = "[[say=hello_there]]"
    options: dict[str, Any] = {"model": "tiny", "prompt": prompt, "logprobs": 2, "echo": True}
    if stream:
        parts = [chunk.choices[0] for chunk in client.completions.create(stream=True, **options)]
    else:
        parts = [client.completions.create(**options).choices[0]]
    text = "".join(part.text for part in parts)
    scored = [part.logprobs for part in parts if part.logprobs]
    tokens = [token for one in scored for token in one.tokens or []]
    offsets = [offset for one in scored for offset in one.text_offset or []]
    values = [value for one in scored for value in one.token_logprobs or []]
    top = [entry for one in scored for entry in one.top_logprobs or []]
    assert text == prompt + "hello there" == "".join(tokens)
    assert all(text.startswith(token, offset) for token, offset in zip(tokens, offsets, strict=True))
    assert values[0] is None and all(value is not None for value in values[1:])
    assert len(top) == len(values) and all(len(entry) <= 2 for entry in top[1:])


def test_several_prompts_and_token_ids_are_possible(shared: Box, client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=["[[say=one]]", "[[say=two]]"], n=2)
    assert [(c.index, c.text) for c in answer.choices] == [(0, "one"), (1, "one"), (2, "two"), (3, "two")]
    ids = shared.house.book.tokenizer.encode("[[say=one]]")
    by_ids = client.completions.create(model="tiny", prompt=ids)
    assert by_ids.choices[0].text == "one" and by_ids.usage and by_ids.usage.prompt_tokens == len(ids)


# ---- over TCP, with the client's own classes of error


def test_the_same_client_works_over_tcp_with_a_key(model: Path, tmp_path: Path) -> None:
    key = Keys(tmp_path).new("anna")
    state_with(model, tmp_path)
    with running(model, tmp_path, listen="127.0.0.1:0") as box:
        with openai.OpenAI(base_url=f"{box.address}/v1", api_key=key, max_retries=0) as client:
            assert client.models.list().data[0].id == "tiny"
            answer = client.chat.completions.create(model="tiny", messages=user("[[say=hello]]"))
            assert answer.choices[0].message.content == "hello"
            stream = client.chat.completions.create(model="tiny", messages=user("[[say=hello]]"), stream=True)
            assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) == "hello"
            with pytest.raises(openai.BadRequestError) as refused:
                client.chat.completions.create(model="tiny", messages=user("x"), temperature=3)
            assert refused.value.param == "temperature"
        with (
            openai.OpenAI(base_url=f"{box.address}/v1", api_key="hb_wrong", max_retries=0) as stranger,
            pytest.raises(openai.AuthenticationError),
        ):
            stranger.models.list()


@pytest.mark.parametrize("position", [0, 4])
def test_logprobs_stay_in_line_with_the_tokens_over_the_death_of_an_engine(
    client: openai.OpenAI, position: int
) -> None:
    options: dict[str, Any] = {
        "model": "tiny", "prompt": f"[[forever]][[die_once={position}]]", "max_tokens": 9, "logprobs": 1, "echo": True,
    }  # fmt: skip
    choice = client.completions.create(**options).choices[0]
    assert choice.logprobs and choice.logprobs.tokens and choice.logprobs.token_logprobs
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.token_logprobs[0] is None and None not in choice.logprobs.token_logprobs[1:]


def test_a_failure_in_mid_stream_is_an_error_the_client_raises(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model="tiny", messages=user("[[die=4]][[pace=5]]"), stream=True)
    with pytest.raises(openai.APIError, match="2 times"):
        list(stream)
    answer = client.chat.completions.create(model="tiny", messages=user("[[say=hello]]"))
    assert re.fullmatch("hello", answer.choices[0].message.content or "")
