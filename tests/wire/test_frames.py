"""Frames arrive whole however the bytes are cut; what is not a frame is refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homebox.wire import frames
from homebox.wire.frames import Abort, Sampling, Splitter, Start, Stop, Submit, ToEngine

SENT: list[ToEngine] = [
    Start("/models/x", kv_bytes=2**33),
    Submit(
        "a",
        "mia",
        list(range(300)),
        Sampling(max_tokens=5, logit_bias={7: -1.5}, end_tokens=(2,)),
        output=[1],
    ),
    Abort("a"),
    Submit(
        "b", "leo", [1], Sampling(max_tokens=10**12, prompt_logprobs=3), exclusive=True, klass="background"
    ),
    Stop(),
]


@given(st.lists(st.integers(1, 400)))
def test_frames_survive_any_cutting(cuts: list[int]) -> None:
    data = b"".join(map(frames.encode, SENT))
    splitter, received = Splitter("to_engine"), []
    for size in [*cuts, len(data)]:
        received += splitter.feed(data[:size])
        data = data[size:]
    assert received == SENT


def test_a_frame_that_claims_to_be_huge_is_refused_before_it_is_read() -> None:
    with pytest.raises(ValueError, match="limit"):
        list(Splitter("to_engine").feed(b"\xff\xff\xff\xff"))


def test_an_engine_does_not_accept_what_only_engines_say() -> None:
    data = frames.encode(frames.Fault("x", "y"))
    with pytest.raises(msgspec.ValidationError):
        list(Splitter("to_engine").feed(data))
