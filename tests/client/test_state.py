"""Do the daemon's events lead to the same answer whatever the connection did to them on the way?"""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from homebox.client.state import ChatState, ConnectionLost, Phase, apply, fresh_text
from homebox.wire import events
from homebox.wire.pause import Pause

USAGE = events.Usage(prompt_tokens=3, completion_tokens=5)


def fold(state: ChatState, said: list[events.Event]) -> ChatState:
    for event in said:
        state = apply(state, event)
    return state


def numbered(said: list[events.Event]) -> list[events.Event]:
    return [msgspec.structs.replace(event, seq=seq) for seq, event in enumerate(said, 1)]


@st.composite
def answers(draw: st.DrawFn) -> list[events.Event]:
    """A whole turn as the daemon writes it: text in pieces with their offsets, other events anywhere between."""
    said: list[events.Event] = [
        events.Queued(position=2, waiting=2, ahead=("leo",)),
        events.Started(queue_ms=4.0),
    ]
    offset = 0
    for piece in draw(st.lists(st.text(min_size=1, max_size=8), max_size=12)):
        if draw(st.booleans()):
            said.append(
                draw(
                    st.sampled_from(
                        [
                            events.Think(text="hm "),
                            events.Stats(tokens=1, tok_s=None, ttft_ms=None, ctx_used=1, ctx_max=10),
                            events.EngineLost(safe_tokens=1),
                            events.Paused(pause=Pause(by="leo", since=0.0), safe_tokens=1),
                            events.Prefill(done=1, total=2),
                        ]
                    )
                )
            )
        said.append(events.Text(text=piece, offset=offset))
        offset += len(piece)
    said.append(events.Finished(reason="stop", usage=USAGE, timing=events.Timing()))
    return numbered(said)


@given(answers(), st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6))
def test_any_cutting_and_replaying_ends_in_the_same_answer(
    said: list[events.Event], cuts: list[tuple[int, int]]
) -> None:
    """After each cut the reader asks for what follows `seq`, and the daemon may send some of what came before again."""
    whole = fold(ChatState(), said)
    state, start = ChatState(), 0
    for length, again in cuts:
        state = fold(state, said[start : start + length])
        state = apply(state, ConnectionLost(1.0))
        start = max(0, state.seq - again)
    state = fold(state, said[start:])
    assert (state.text, state.think, state.seq) == (whole.text, whole.think, whole.seq)
    assert state.done and state.phase is Phase.DONE and not state.lost


@given(answers(), st.data())
def test_doubled_events_count_once(said: list[events.Event], data: st.DataObject) -> None:
    doubled: list[events.Event] = []
    for place, event in enumerate(said):
        doubled.append(event)
        if data.draw(st.booleans()):
            doubled.extend(said[data.draw(st.integers(0, place)) : place + 1])
    assert fold(ChatState(), doubled) == fold(ChatState(), said)


@given(st.text(), st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=8))
def test_overlapping_text_is_written_once(text: str, pieces: list[tuple[int, int]]) -> None:
    """Also where the pieces carry no numbers: the offset alone is enough."""
    state = ChatState()
    for start, length in [*pieces, (0, len(text))]:
        start = min(start, len(state.text))
        state = apply(state, events.Text(text=text[start : start + length], offset=start))
    assert state.text == text and not state.lost


def test_a_gap_is_noticed_and_mended_by_reading_again() -> None:
    said = numbered(
        [
            events.Text(text="one ", offset=0),
            events.Text(text="two ", offset=4),
            events.Text(text="three", offset=8),
        ]
    )
    state = fold(ChatState(), [said[0], said[2]])
    assert state.lost and state.text == "one " and state.seq == 1
    state = fold(apply(state, ConnectionLost(1.0)), said[1:])
    assert not state.lost and state.text == "one two three"


def test_an_answer_with_a_gap_is_not_taken_for_finished() -> None:
    done = events.Finished(reason="stop", usage=USAGE, timing=events.Timing(), seq=3)
    state = fold(ChatState(), [events.Text(text="x", offset=7, seq=2), done])
    assert state.lost and not state.done


def test_a_resync_replaces_what_is_there_and_the_answer_goes_on() -> None:
    said: list[events.Event] = [
        events.Text(text="slow", offset=0, seq=1),
        events.Resync(text="slow reader, ", seq=9),
        events.Text(text="whole again", offset=13, seq=10),
    ]
    assert fold(ChatState(), said).text == "slow reader, whole again"


def test_a_resync_takes_nothing_away_that_the_reader_has() -> None:
    """A daemon that was killed kept a quarter of a second less than the reader has seen."""
    state = fold(
        ChatState(),
        [
            events.Think(text="hm, well", seq=1),
            events.Text(text="all of it", offset=0, seq=2),
            events.Resync(text="all of", think="hm,", seq=3),
        ],
    )
    assert (state.text, state.think) == ("all of it", "hm, well")
    state = apply(state, events.Resync(text="another answer", think="no", seq=4))
    assert (state.text, state.think) == ("another answer", "no")


def test_a_notice_stands_beside_the_answer() -> None:
    notice = events.Notice(code="no_space", message="the disk is full", seq=2)
    state = fold(ChatState(), [events.Text(text="a", offset=0, seq=1), notice])
    assert state.notice == notice and state.text == "a" and state.phase is Phase.WRITING


def test_a_front_end_that_only_appends_writes_what_is_new() -> None:
    before = ChatState(text="The sky")
    assert fresh_text(before, ChatState(text="The sky is blue")) == " is blue"
    assert fresh_text(before, ChatState(text="Another answer")) == "\nAnother answer"


def test_the_queue_line_is_gone_once_the_answer_begins() -> None:
    state = fold(ChatState(), [events.Queued(position=1, waiting=1, seq=1)])
    assert state.phase is Phase.WAITING and state.queue is not None
    state = fold(state, [events.Started(queue_ms=10, seq=2)])
    assert state.phase is Phase.READING and state.queue is None


def test_a_new_engine_reading_the_prompt_again_does_not_unwrite_the_answer() -> None:
    said = numbered(
        [
            events.Text(text="so far", offset=0),
            events.EngineLost(safe_tokens=2),
            events.Prefill(done=4, total=9),
            events.Text(text=" so good", offset=6),
        ]
    )
    lost = fold(ChatState(), said[:2])
    assert lost.engine_lost is not None and lost.text == "so far"
    state = fold(lost, said[2:])
    assert state.text == "so far so good" and state.engine_lost is None and state.phase is Phase.WRITING
