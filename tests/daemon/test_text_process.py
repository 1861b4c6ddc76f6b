"""Large texts: tokens as ever, made by a process that can be killed."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from homebox.daemon.text_process import TextProcess
from homebox.errors import InvalidRequest
from homebox.text.join import Computed
from homebox.text.tokens import Tokenizer

LONG = "the quick brown fox <|im_end|> jumps\n" * 2_000


def talk(*contents: str) -> list[dict[str, str]]:
    return [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(contents)]


def test_a_large_text_becomes_the_same_tokens_as_in_the_daemon(model: Path) -> None:
    tokenizer = Tokenizer.load(model)
    messages = talk(LONG, "It begins")
    before = tokenizer.render(messages[:1])
    said = Computed([*before, *tokenizer.encode("Well")], len(before))
    goes_on = talk(LONG, "Well, yes", "And then?")

    async def ask() -> None:
        child = TextProcess(model)
        assert await child.encode(LONG) == tokenizer.encode(LONG)
        assert await child.render(messages, continue_last=True) == tokenizer.render(
            messages, continue_last=True
        )
        assert await child.render(messages[:1], continue_last=False) == before
        joined = await child.render(goes_on, continue_last=False, computed=said)
        assert joined == tokenizer.render(goes_on, computed=said) and joined[: len(said.ids)] == said.ids
        await child.close()

    asyncio.run(ask())


def test_what_takes_too_long_is_killed_and_refused_and_the_next_request_is_answered(model: Path) -> None:
    async def ask() -> None:
        child = TextProcess(model)
        assert await child.encode("short")
        first = child.pid
        child._within_s = 0.02
        with pytest.raises(InvalidRequest, match=r"more than 0\.02 s"):
            await child.encode(LONG * 100)
        assert child.pid is None and first is not None
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)
        child._within_s = 20.0
        assert await child.encode("short")
        await child.close()

    asyncio.run(ask())


def test_a_child_that_dies_costs_one_request(model: Path) -> None:
    async def ask() -> None:
        child = TextProcess(model)
        assert await child.encode("short")
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(InvalidRequest, match="broke down"):
            await child.encode("short")
        assert await child.encode("short")
        await child.close()

    asyncio.run(ask())


def test_a_client_that_leaves_takes_its_text_with_it(model: Path) -> None:
    async def ask() -> None:
        child = TextProcess(model)
        assert await child.encode("short")
        asked = asyncio.create_task(child.encode(LONG * 100))
        await asyncio.wait([asked], timeout=0.01)
        assert child._turn.locked()  # it has begun
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert await child.encode("short")
        await child.close()

    asyncio.run(ask())


def test_a_template_that_refuses_does_so_in_its_own_words(model: Path, tmp_path: Path) -> None:
    strict = shutil.copytree(model, tmp_path / "strict")
    (strict / "chat_template.jinja").write_text("{{ raise_exception('only on Sundays') }}")

    async def ask() -> None:
        child = TextProcess(strict)
        with pytest.raises(InvalidRequest, match="only on Sundays"):
            await child.render(talk(LONG), continue_last=False)
        with pytest.raises(InvalidRequest, match="surrogate"):
            await child.encode("\ud800" * 100)
        await child.close()

    asyncio.run(ask())
