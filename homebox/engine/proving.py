"""What is checked of a GPU before it is used? One set of checks, in this process; what was found goes to standard output.

The shapes are those of the model that is to run. The last set is a small model with such heads in a whole engine:
chunks, captured steps, little room, blocks that go to host memory and come back; its texts are judged by the reference
on the processor.

    python -m homebox.engine.proving attention --model DIR --device cuda:0
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from msgspec.structs import replace

from homebox.engine.compute import plan_for
from homebox.engine.gpu import KV_KINDS
from homebox.engine.proof import ILLEGAL, NO_MEMORY, SETS
from homebox.errors import EngineFailed, HomeboxError, NoMemory, OutOfMemory
from homebox.fit.model import Model, read
from homebox.fit.plan import kv_kind, kv_token_bytes, lying
from homebox.fit.room import LEAST_BLOCKS
from homebox.model.spec import DecoderSpec
from homebox.wire.frames import Progress, Refused, Sampling, Start, StepDone, Submit

if TYPE_CHECKING:
    from homebox.kernels.triton.checks import Check, Scope

# Of a token's logprob, in the small model. What is right is off by 0.12 at most, rounded to bf16 as the decoder rounds, over 25,000 tokens
# and five shapes of heads; with keys and values in int8 by 0.18, in fp8 by 0.7. One block with its neighbour's contents: 0.3 to 3.
BOUNDS = {"fp32": 0.02, "bf16": 0.25, "int8": 0.3, "fp8": 1.2}
OUTPUTS = (
    1024,
    8192,
)  # of the weights that are checked, rather than all: few, where inputs are cut into splits, and many

# What a driver says, in whatever exception.
_SHORT = ("out of memory", "ALLOC_FAILED", "MemoryError")
_REFUSED = (
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "unspecified launch failure",
    "device-side assert",
)


# So that a query looks at few keys, and what it finds there matters.
GAINS = {"self_attn.q_proj": 1.7, "self_attn.k_proj": 1.7, "self_attn.o_proj": 2.0}


class Texts(NamedTuple):
    """Tokens of each prompt and of each answer, and of a chunk. One prompt is longer than a split of attention."""

    lengths: tuple[int, ...] = (1, 17, 100, 700)
    answer: int = 24
    chunk: int = 256


def scope(model: Model, start: Start, device: torch.device) -> Scope:
    """The shapes of this model; where Triton's interpreter computes, with less of each."""
    from homebox.kernels.triton.checks import FEW_ROWS, ROWS, Heads, Scope

    spec, plan, here = model.spec, plan_for(start, threads=1, kernels="gpu"), device.type != "cpu"
    some, more = OUTPUTS if here else (64, 64)
    kept = {each.kind for each in lying(model, plan)} & {"int4", "int8", "fp8"}
    kind = KV_KINDS[kv_kind(model, plan)]
    windows = dict.fromkeys(spec.windows)
    return Scope(
        dtype=torch.bfloat16 if here else torch.float32,
        attention=tuple(
            Heads(spec.heads, spec.kv_heads, spec.head_dim, window, 0.0, kind) for window in windows
        ),
        rows=ROWS if here else FEW_ROWS,
        size=spec.hidden,
        tokens=65 if here else 3,
        weights=(
            (some, spec.heads * spec.head_dim),
            (some, spec.mlp),
            (min(more, 2 * spec.mlp), spec.hidden),
        ),
        kinds=tuple(sorted(kept)),
        products=(1, 4, 33, 200) if here else (1, 3),
        vocab=spec.vocab_size,
        draws=36 if here else 2,
    )


def whole(spec: DecoderSpec, start: Start, texts: Texts = Texts()) -> Iterator[Check]:  # noqa: B008
    """Texts of a whole engine on `start.device`, to the reference: by how much less likely than the likeliest a token is, and how far
    off what the engine says of it."""
    from homebox.kernels.triton.checks import Check

    with tempfile.TemporaryDirectory() as folder:
        _small_model(Path(folder), spec)
        asked = Start(
            folder, device=start.device, kv_type=start.kv_type, attention="own", max_running=len(texts.lengths),
            max_chunk_tokens=texts.chunk,
        )  # fmt: skip
        # Room for the longest text at its end and little more, so that what the others said goes to host memory and comes back.
        ends = [length + 2 * texts.answer + 2 for length in texts.lengths]
        needed = [-(-end // start.block_size) for end in ends]
        blocks = max(max(needed) + 4, LEAST_BLOCKS)
        room = kv_token_bytes(read(Path(folder)), plan_for(asked, 1, "gpu")) * start.block_size * blocks
        ours = _House(replace(asked, kv_bytes=room, kv_host_bytes=4 * room))
        right = _House(Start(folder, device="cpu", kernels="reference", max_running=1, kv_bytes=1 << 26))
        generator = torch.Generator().manual_seed(1)
        prompts = [torch.randint(3, 1000, (n,), generator=generator).tolist() for n in texts.lengths]
        for turn, scored in (("first", False), ("second", True)):  # in the second, steps are captured
            said = ours.answers(prompts, texts.answer, scored)
            answers = [answer for answer, _ in said]
            worst = max(right.off(prompt, *of) for prompt, of in zip(prompts, said, strict=True))
            if any(len(answer) != texts.answer for answer in answers):
                worst = float("inf")
            yield Check(f"{len(prompts)} texts of a whole engine, {turn} turn", worst, BOUNDS[ours.kv])
            prompts = [[*prompt, *answer, 5, 7] for prompt, answer in zip(prompts, answers, strict=True)]
        if sum(needed) > blocks:
            yield Check(
                "that blocks come back from host memory", 0.0 if ours.came_back else float("inf"), 0.0
            )


def _small_model(folder: Path, spec: DecoderSpec) -> None:
    """Two layers with this one's heads, and random weights whose logits spread as a model's do."""
    from safetensors.torch import save_file

    hidden, mlp, kv_heads, vocab = 256, 512, 2, 1000
    heads, dim = kv_heads * (spec.heads // spec.kv_heads), spec.head_dim
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": hidden,
        "intermediate_size": mlp, "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": dim, "vocab_size": vocab, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(2)

    def matrix(outputs: int, inputs: int, spread: float) -> torch.Tensor:
        return (torch.randn(outputs, inputs, generator=generator) * spread).to(torch.bfloat16)

    ones = torch.ones(hidden, dtype=torch.bfloat16)
    tensors = {
        "model.embed_tokens.weight": matrix(vocab, hidden, 1.0),
        "model.norm.weight": ones,
        "lm_head.weight": matrix(vocab, hidden, 1.5 * hidden**-0.5),
    }
    for layer in range(2):
        shapes = {
            "self_attn.q_proj": (heads * dim, hidden), "self_attn.k_proj": (kv_heads * dim, hidden),
            "self_attn.v_proj": (kv_heads * dim, hidden), "self_attn.o_proj": (hidden, heads * dim),
            "mlp.gate_proj": (mlp, hidden), "mlp.up_proj": (mlp, hidden), "mlp.down_proj": (hidden, mlp),
        }  # fmt: skip
        for name, (outputs, inputs) in shapes.items():
            gain = GAINS.get(name, 1.0)
            tensors[f"model.layers.{layer}.{name}.weight"] = matrix(outputs, inputs, gain * inputs**-0.5)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = ones.clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


class _House:
    """An engine in this process, and what it said."""

    def __init__(self, start: Start) -> None:
        from homebox.engine.build import build

        self._said: dict[str, list[Progress]] = {}
        self._engine, ready = build(start, lambda frame: self._hear(frame), lambda *_: None)
        self._engine.scheduler.admission.horizon_tokens = 0  # all may come in, and some have to give way
        self.kv = ready.kv
        self._count = 0

    @property
    def came_back(self) -> int:
        return self._engine.scheduler.pool_state().host_hit_tokens

    def _hear(self, frame: object) -> None:
        if isinstance(frame, Refused):
            raise EngineFailed(frame.message)
        for progress in frame.progress if isinstance(frame, StepDone) else ():
            self._said.setdefault(progress.id, []).append(progress)

    def _run(self, prompts: list[list[int]], sampling: Sampling) -> list[list[Progress]]:
        names = [f"r{self._count + i}" for i in range(len(prompts))]
        self._count += len(prompts)
        for name, prompt in zip(names, prompts, strict=True):
            self._engine.submit(Submit(name, "mia", prompt, sampling))  # nobody else would find what she said
        while self._engine.step():
            pass
        return [self._said[name] for name in names]

    def answers(
        self, prompts: list[list[int]], tokens: int, scored: bool
    ) -> list[tuple[list[int], list[float]]]:
        """Tokens, and their logprobs where they are `scored`."""
        wish = Sampling(max_tokens=tokens, temperature=0.0, ignore_eos=True, logprobs=0 if scored else None)
        return [
            (
                [token for progress in each for token in progress.tokens],
                [score.logprob for progress in each for score in progress.logprobs],
            )
            for each in self._run(prompts, wish)
        ]

    def off(self, prompt: list[int], answer: list[int], logprobs: list[float]) -> float:
        """How much likelier than a token of the answer another one would have been, and how far off `logprobs` are, at most."""
        (said,) = self._run([prompt + answer], Sampling(max_tokens=1, temperature=0.0, prompt_logprobs=1))
        scored = [score for progress in said for score in progress.prompt_logprobs][-len(answer) :]
        regrets = [max(top.logprob for top in score.top) - score.logprob for score in scored]
        apart = [abs(score.logprob - its) for score, its in zip(scored, logprobs, strict=False)]
        return max([0.0, *regrets, *apart])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--model", required=True, metavar="DIR")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--quantize", default="auto")
    parser.add_argument("--kv-type", default="auto")
    parser.add_argument("--until-closed", action="store_true", help="end when standard input does")
    asked = parser.parse_args()
    if asked.until_closed:
        threading.Thread(target=_until_closed, daemon=True).start()
    faulthandler.enable()
    found = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print
    start = Start(asked.model, device=asked.device, quantize=asked.quantize, kv_type=asked.kv_type)
    try:
        for check in _checks(asked.set, read(Path(asked.model)), start, torch.device(asked.device)):
            print(json.dumps(check._asdict()), file=found, flush=True)
    except HomeboxError as error:
        print(error.message, file=sys.stderr)
        return NO_MEMORY if isinstance(error, NoMemory | OutOfMemory) else 1
    except Exception as error:
        traceback.print_exc()
        said = f"{type(error).__name__}: {error}"
        print(said.splitlines()[0], file=sys.stderr)  # last: this line is for people
        if any(words in said for words in _SHORT):
            return NO_MEMORY
        return ILLEGAL if any(words in said for words in _REFUSED) else 1
    return 0


def _checks(name: str, model: Model, start: Start, device: torch.device) -> Iterator[Check]:
    if name == "whole":
        return whole(model.spec, start)
    from homebox.kernels.triton import checks

    return checks.SETS[name](device, scope(model, start, device))


def _until_closed() -> None:
    while os.read(0, 1 << 10):  # past Python's buffer, which a thread may not hold when the process ends
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
