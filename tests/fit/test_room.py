"""What is left is given to conversations: never more than is free, never less than it would just need, said in whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homebox.errors import NoMemory
from homebox.fit import words
from homebox.fit.advice import check, check_wish
from homebox.fit.cards import known
from homebox.fit.demand import Demand, demand
from homebox.fit.machine import free_bytes
from homebox.fit.model import Model
from homebox.fit.plan import Plan
from homebox.fit.room import AUTO_KV_BYTES, LEAST_BLOCKS, Fit, Kind, Memory, room

GIB, MIB = 2**30, 2**20
KINDS: tuple[Kind, ...] = ("host", "gpu", "unified")

sizes = st.integers(0, 200 * GIB)
demands = st.builds(
    Demand, weights=sizes, activations=sizes, kv_token=st.integers(1, MIB), block_tokens=st.sampled_from([8, 16, 32]),
    loading=sizes, graphs=sizes, context=sizes, process=sizes, host_kv=sizes,
)  # fmt: skip
memories = st.builds(Memory, st.integers(0, 1000 * GIB), st.sampled_from(KINDS))


@given(demands, memories, st.one_of(st.just(0), sizes), st.one_of(st.just(0), st.integers(1, 10**6)))
def test_it_never_takes_more_than_is_free_less_the_margin(
    asked: Demand, memory: Memory, kv_bytes: int, most: int
) -> None:
    found = room(asked, memory, kv_bytes=kv_bytes, most_tokens=most)
    assert found.kv_bytes % asked.kv_block == 0 and found.tokens * asked.kv_token == found.kv_bytes
    if found.kv_bytes:
        assert found.fixed + found.kv_bytes <= memory.free - memory.margin
    if most:
        assert found.tokens < most + asked.block_tokens
    if kv_bytes:
        assert found.kv_bytes <= kv_bytes


@given(demands, memories)
def test_what_it_needs_is_exact(asked: Demand, memory: Memory) -> None:
    found = room(asked, memory)
    enough = room(asked, replace(memory, free=found.needed))
    assert not enough.short and enough.tokens >= LEAST_BLOCKS * asked.block_tokens
    assert room(asked, replace(memory, free=found.needed - 1)).short == 1
    assert found.short == max(found.needed - memory.free, 0)


@given(demands, memories, st.integers(0, 100 * GIB))
def test_more_memory_never_holds_less(asked: Demand, memory: Memory, more: int) -> None:
    larger = replace(memory, free=memory.free + more)
    assert room(asked, larger).tokens >= room(asked, memory).tokens


SMALL = Demand(weights=GIB, activations=64 * MIB, kv_token=1024, block_tokens=16, loading=0)


def test_on_a_processor_conversations_get_half_of_what_is_free_and_2_gib_at_most() -> None:
    assert room(SMALL, Memory(64 * GIB)).kv_bytes == AUTO_KV_BYTES
    tight = room(SMALL, Memory(2 * GIB))
    assert abs(tight.kv_bytes - tight.left // 2) < SMALL.kv_block


def test_what_the_settings_ask_for_is_given_or_lowered_and_said() -> None:
    given_ = room(SMALL, Memory(64 * GIB), kv_bytes=8 * GIB)
    assert given_.kv_bytes == 8 * GIB and not given_.lowered
    found = room(SMALL, Memory(4 * GIB), kv_bytes=8 * GIB)
    assert found.lowered and found.kv_bytes == found.left // SMALL.kv_block * SMALL.kv_block
    said = words.lowered(found)
    assert "8.0 GiB of KV memory are wanted; 4.0 GiB are free" in said and "2.7 GiB are left" in said
    capped = room(SMALL, Memory(64 * GIB), kv_bytes=8 * GIB, most_tokens=1024)
    assert capped.tokens == 1024 and not capped.lowered  # more could not be used


def test_where_gpu_and_system_share_a_memory_8_gib_are_kept_and_all_lies_in_it() -> None:
    asked = replace(SMALL, process=GIB, host_kv=2 * GIB, context=GIB)
    shared, own = room(asked, Memory(32 * GIB, "unified")), room(asked, Memory(32 * GIB, "gpu"))
    assert shared.left == 32 * GIB - 8 * GIB - GIB - 64 * MIB - GIB - GIB - 2 * GIB
    assert own.left == shared.left + 8 * GIB - own.memory.margin + 3 * GIB
    assert own.beside == 3 * GIB and shared.beside == 0


def test_a_load_that_would_not_pass_through_the_memory_does_not_fit() -> None:
    asked = replace(SMALL, loading=6 * GIB)
    assert room(asked, Memory(4 * GIB)).short == 7 * GIB + Memory(0).margin - 4 * GIB
    assert not room(asked, Memory(4 * GIB, "gpu")).short  # it passes beside it


def eight(plan: Plan, gib: float, kind: Kind = "gpu") -> tuple[Model, Fit]:
    model = known("llama-3.1-8b")
    assert model is not None
    return model, room(demand(model, plan), Memory(int(gib * GIB), kind))


def refusal(plan: Plan, gib: float, kind: Kind = "gpu", wish: tuple[int, int] | None = None) -> NoMemory:
    model, found = eight(plan, gib, kind)
    with pytest.raises(NoMemory) as caught:
        check(found, model, plan, lambda other: demand(model, other))
        if wish:
            check_wish(found, model, plan, lambda other: demand(model, other), *wish)
    return caught.value


def test_a_refusal_says_by_how_much_and_what_would_fit() -> None:
    said = refusal(Plan("gpu"), 12)
    assert (
        "needs 16.3 GiB free on the GPU, 15.0 GiB of it for weights in bf16; 12.0 GiB are free"
        in said.message
    )
    assert 'quantize = "int4" (room for 40k tokens)' in str(said.hint)
    assert said.numbers["short_bytes"] == said.numbers["needed_bytes"] - 12 * GIB
    on_cpu = refusal(Plan("native", quantize="none"), 20, "host")
    assert "weights in fp32" in on_cpu.message and 'quantize = "auto"' in str(on_cpu.hint)
    hopeless = refusal(Plan("gpu", quantize="int4"), 2)
    assert hopeless.hint == "What would fit: 5.1 GiB more memory; a smaller model."
    assert "max_chunk_tokens = 128" in str(refusal(Plan("reference", max_chunk_tokens=4096), 40, "host").hint)


def test_a_wish_that_cannot_be_met_says_what_can() -> None:
    said = refusal(Plan("gpu"), 24, wish=(6, 32_000))
    assert "room for 63k tokens here; 6 people at 32k are 192k, 15.7 GiB too much" in said.message
    assert str(said.hint).startswith("What would fit: 6 people at 10k; 1 person at 32k;")
    assert 'quantize = "int4" with kv_type = "int8" (room for 268k tokens)' in str(said.hint)
    on_cpu = refusal(Plan("native"), 40, "host", wish=(6, 8000))
    assert str(on_cpu.hint).endswith('For all: kv_memory = "6000MiB"')


def test_what_a_refusal_advises_does_fit() -> None:
    model, _ = eight(Plan("gpu"), 12)

    def ask(plan: Plan) -> Demand:
        return demand(model, plan)

    for plan in (Plan("gpu", "int8"), Plan("gpu", "int4")):
        check(room(ask(plan), Memory(12 * GIB, "gpu")), model, plan, ask)
    found = room(ask(Plan("native")), Memory(40 * GIB), kv_bytes=6000 * MIB)
    check_wish(found, model, Plan("native"), ask, 6, 8000)


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0"), (999, "999"), (1024, "1k"), (2500, "2.5k"), (8192, "8k"), (38_912, "38k")]
)
def test_tokens_are_said_short_and_never_more_than_there_are(count: int, said: str) -> None:
    assert words.tokens(count) == said


def test_the_verdict_says_for_how_many() -> None:
    _, found = eight(Plan("gpu", "int4"), 12)
    assert words.verdict(found, 131_072, 6) == (
        "fits with 40k tokens: 6 people at 6k; one conversation can have 40k here, the model was trained for 131k"
    )
    assert words.verdict(found, 8192, 6) == "fits with 40k tokens: 6 people at 6k, or 4 people at 8k"
    assert words.verdict(found, 4096, 6) == (
        "fits with 40k tokens: 6 people at 4k, which is all that the model was trained for; room for 9 such"
    )


def test_memory_is_what_the_machine_has_or_what_its_control_group_allows(tmp_path: Path) -> None:
    def group(name: str, files: dict[str, str]) -> None:
        for file, text in files.items():
            path = tmp_path / "sys/fs/cgroup" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/box.slice/homebox.service\n")
    available = psutil.virtual_memory().available
    group(
        "box.slice/homebox.service",
        {"memory.max": "max\n", "memory.high": "max\n", "memory.current": "5000\n"},
    )
    assert free_bytes(tmp_path) == pytest.approx(available, rel=0.2)
    group("box.slice", {
        "memory.max": f"{96 * MIB}\n", "memory.high": "max\n", "memory.current": f"{64 * MIB}\n",
        "memory.stat": f"anon 5\ninactive_file {16 * MIB}\n",
    })  # fmt: skip
    assert free_bytes(tmp_path) == 48 * MIB
    group("box.slice", {"memory.current": f"{640 * MIB}\n"})
    assert free_bytes(tmp_path) == 0
