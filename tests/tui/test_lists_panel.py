"""The side panel: what is unknown is n/a and never 0, others are names and figures, histories begin anew."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from homebox.client.state import ChatState, ConnectionLost, apply
from homebox.tui.panel import SidePanel
from homebox.wire import events
from homebox.wire.requests import Options

from . import golden
from .stage import HOSTILE, NOW, SIZES, Stage, settled

STATS = [events.Stats(seq=n, tokens=40 * n, tok_s=50.0 + n, ttft_ms=410.0, ctx_used=5012 + 40 * n, ctx_max=16384) for n in range(1, 11)]  # fmt: skip
FINISHED = events.Finished(
    seq=11,
    reason="stop",
    usage=events.Usage(prompt_tokens=5012, completion_tokens=418, cached_tokens=3968),
    timing=events.Timing(queue_ms=120.0, ttft_ms=410.0, total_ms=9200.0, tok_s=62.0),
)


def stream(person: str, state: str, **more: Any) -> events.StreamRow:
    return events.StreamRow(
        id=f"s-{person}-{state}", person=person, state=state, model="m", klass="normal", tokens_in=9, tokens_out=3, **more
    )  # fmt: skip


def house(util: float | None) -> events.Snapshot:
    return events.Snapshot(
        at=NOW,
        version="1",
        uptime_s=5,
        engine="ready",
        waiting=1,
        devices=(
            events.Device(kind="gpu", name="big", util_percent=util),
            events.Device(kind="cpu", name="c"),
        ),
        streams=(
            stream("anna", "decode", tok_s=62.0, mine=True),
            stream("dad", "decode", tok_s=58.8),
            stream("dad", "decode", tok_s=59.1),
            stream("leo", "prefill"),
            stream("mia", "waiting", position=1),
            stream(HOSTILE, "held"),
        ),
    )


def written(*more: Any) -> ChatState:
    state = ChatState()
    for event in (events.Text(text="x", offset=0), *STATS, *more):
        state = apply(state, event)
    return state


@pytest.mark.parametrize("size", SIZES)
def test_the_panel_at_every_size(size: tuple[int, int]) -> None:
    async def go() -> None:
        panel = SidePanel()
        async with Stage(panel).run_test(size=size) as pilot:
            panel.show_chat(
                model="qwen3-8b",
                system=f"\n{HOSTILE}\nsecond line",
                options=Options(temperature=0.7, max_tokens=2048),
            )
            state = ChatState()
            for event in (events.Text(text="x", offset=0), *STATS):
                state = apply(state, event)
                panel.show_answer(state)
            for util in (10.0, None, 74.0):
                panel.show_house(house(util))
            golden.check(
                f"panel-{size[0]}x{size[1]}", await settled(pilot, "writing" if size[1] > 12 else "qwen3")
            )

    asyncio.run(go())


async def words_of(panel: SidePanel, pilot: Any, words: str) -> str:
    return " ".join((await settled(pilot, words)).split())


def test_what_is_not_known_is_never_a_zero() -> None:
    async def go() -> None:
        panel = SidePanel()
        async with Stage(panel).run_test(size=(80, 40)) as pilot:
            panel.show_chat(model=None)
            shown = await words_of(panel, pilot, "daemon does not answer")
            assert "model n/a" in shown
            assert "n/a of n/a tok" in shown
            assert "cached prefix n/a" in shown
            panel.show_answer(ChatState())
            shown = await words_of(panel, pilot, "elapsed n/a")
            assert "tokens n/a speed n/a" in shown
            panel.show_house(
                events.Snapshot(
                    at=NOW,
                    version="1",
                    uptime_s=0,
                    engine="ready",
                    devices=(events.Device(kind="cpu", name="c"),),
                )
            )
            shown = await words_of(panel, pilot, "nothing is running")
            assert "CPU" in shown
            assert not {"0", "0%", "0.0"} & set(shown.split())

    asyncio.run(go())


def test_an_answer_is_told_from_its_queue_to_its_end() -> None:
    async def go() -> None:
        panel = SidePanel()
        async with Stage(panel).run_test(size=(80, 40)) as pilot:
            queued = apply(ChatState(), events.Queued(seq=1, position=2, waiting=3, ahead=("dad",)))
            panel.show_answer(queued)
            await words_of(panel, pilot, "state place 2 of 3")
            reading = apply(queued, events.Prefill(seq=2, done=512, total=4096))
            panel.show_answer(reading)
            await words_of(panel, pilot, "state reading 512/4,096")
            panel.show_answer(written())
            shown = await words_of(panel, pilot, "state writing")
            assert "5,412 of 16,384 tok" in shown
            assert "elapsed 7.1 s" in shown  # 0.41 s to the first of 400 tokens, then 60 a second
            panel.show_answer(apply(written(), ConnectionLost(1.0)))
            await words_of(panel, pilot, "state reconnecting")
            panel.show_answer(written(FINISHED))
            shown = await words_of(panel, pilot, "state done")
            assert "5,430 of 16,384 tok cached prefix 3,968" in shown
            assert "TTFT 0.41 s (queue 0.12) elapsed 9.2 s" in shown

    asyncio.run(go())


def test_the_chat_before_its_next_answer_shows_what_the_last_one_used() -> None:
    async def go() -> None:
        panel = SidePanel()
        async with Stage(panel).run_test(size=(80, 40)) as pilot:
            panel.show_answer(written())
            panel.show_chat(model="m", usage=FINISHED.usage, context=8192)
            shown = await words_of(panel, pilot, "5,430 of 8,192 tok")
            assert "nothing is being written" in shown

    asyncio.run(go())


def test_people_are_names_and_figures_and_the_daemon_may_be_of_another_version() -> None:
    async def go() -> None:
        panel = SidePanel()
        async with Stage(panel).run_test(size=(80, 40)) as pilot:
            panel.show_house(house(74.0))
            shown = await words_of(panel, pilot, "*anna 1 run 62.0 tok/s")
            assert "dad 2 run 117.9 tok/s" in shown
            assert "leo 1 run prefill" in shown
            assert "mia 1 wait" in shown
            assert "74%" in shown
            panel.show_house(events.Snapshot(schema=99, at=NOW, version="9", uptime_s=0, engine="ready"))
            await words_of(panel, pilot, "our versions differ")

    asyncio.run(go())


def test_a_part_is_drawn_again_only_where_its_words_change(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        panel = SidePanel()
        async with Stage(panel).run_test(size=(80, 40)) as pilot:
            panel.show_answer(written())
            panel.show_house(house(74.0))
            await settled(pilot, "anna")
            drawn: list[str] = []
            for name, part in panel._parts.items():
                monkeypatch.setattr(part, "update", lambda *_, name=name, **__: drawn.append(name))
            panel.show_answer(written(events.Heartbeat()))
            assert drawn == []
            panel.show_answer(written(FINISHED))
            assert drawn == ["CONTEXT", "THIS ANSWER"]

    asyncio.run(go())
