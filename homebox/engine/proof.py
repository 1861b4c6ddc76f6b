"""Do our kernels work on the GPU that is here? One that nobody asked for is used only then.

Each set of checks is a process of its own, since a kernel that reads where it must not takes its process with it. Their
shapes are those of the model that is to run. The last set is a small model with such heads in a whole engine, captured
steps, moved blocks and all, whose texts are compared with the reference on the processor. What comes of it is
remembered, and found out again when anything changes that it depends on.

    python -m homebox.engine.proof attention --model DIR --device cuda:0
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from msgspec.structs import replace

from homebox.engine.compute import plan_for
from homebox.engine.gpu import KV_KINDS, Gpu
from homebox.errors import HomeboxError, KernelsMissing
from homebox.fit.model import Model, read
from homebox.fit.plan import kinds, kv_kind, kv_token_bytes, lying
from homebox.fit.room import LEAST_BLOCKS
from homebox.kernels.remembered import Finding, Remembered
from homebox.model.loader import Report
from homebox.model.spec import DecoderSpec
from homebox.wire.frames import Progress, Sampling, Start, StepDone, Submit

if TYPE_CHECKING:
    from homebox.kernels.triton.checks import Check, Scope

FILE = "gpu.json"
STAGE = "checking the GPU"
SETS = ("attention", "entering", "operations", "quantised", "sampling", "whole")
AT_ONCE = 3  # each takes some 500 MiB of the GPU
WITHIN_S, REPORT_S = 300.0, 5.0
NO_MEMORY = 3  # what a process ends with

# Of the small model. Its logits spread by 3. Rounded to bf16 they are off by 0.05 at most, with keys and values in int8 by 0.3, in
# fp8 by 1; the likeliest token is then less likely than another by 0.01, 0.07 and 0.6. One wrong block costs 8 and more.
BOUNDS = {"fp32": 0.01, "bf16": 0.1, "int8": 0.3, "fp8": 1.0}


class Texts(NamedTuple):
    """Tokens of each prompt and of each answer, and of a chunk."""

    lengths: tuple[int, ...] = (1, 17, 100, 300)
    answer: int = 24
    chunk: int = 64


class Outcome(NamedTuple):
    """Of a set: why it failed, or nothing. `lasting`: whether it will be the same the next time."""

    why: str
    lasting: bool = True


def why_not(
    gpu: Gpu, start: Start, model: Model, report: Report, cache: Path,
    run: Callable[[Gpu, Start, str], Outcome] | None = None,
) -> str:  # fmt: skip
    """Why this GPU is not to be used for this model, or nothing. Takes a minute or two the first time. `cache`: the directory
    where the answer is kept; `run`: does one of SETS."""
    about = _about(gpu, start, model)
    try:
        remembered = Remembered(cache, FILE)
        found = remembered.find(about)
        if found is None:
            outcomes = _outcomes(run or _in_a_process, gpu, start, report)
            failed = [each for each in outcomes if each.why]
            found = Finding(about, not failed, failed[0].why if failed else "")
            if all(each.lasting for each in failed):
                remembered.put(found)
    except (KernelsMissing, OSError) as error:
        return f"whether our kernels work on it is not found out, since that could not be remembered: {error}"
    return f"our kernels do not pass their checks on it: {found.why}" if found.why else ""


def _about(gpu: Gpu, start: Start, model: Model) -> dict[str, str]:
    """All that the answer depends on."""
    plan, spec = plan_for(start, threads=1, kernels="gpu"), model.spec
    numbers = spec.hidden, spec.heads, spec.kv_heads, spec.head_dim, spec.mlp, spec.vocab_size
    return {
        "gpu": gpu.name,
        "capability": str(gpu.capability()),
        "torch": str(torch.__version__),
        "ours": _own_build(),
        "model": f"{numbers} {sorted(set(map(str, spec.windows)))}",
        "kept": f"{kinds(model, plan)}, {kv_kind(model, plan)}",
    }


def _own_build() -> str:
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for file in sorted(
        file for part in ("kernels", "engine", "model") for file in (root / part).rglob("*.py")
    ):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _outcomes(
    run: Callable[[Gpu, Start, str], Outcome], gpu: Gpu, start: Start, report: Report
) -> list[Outcome]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(run, gpu, start, name) for name in SETS]
        left = set(running)
        while left:
            report(STAGE, len(SETS) - len(left), len(SETS))  # now and then, or we are taken for dead
            left = wait(left, REPORT_S, FIRST_COMPLETED).not_done
        report(STAGE, len(SETS), len(SETS))
    return [each.result() for each in running]


def _in_a_process(gpu: Gpu, start: Start, name: str, within_s: float = WITHIN_S) -> Outcome:
    command = [
        sys.executable, "-m", "homebox.engine.proof", name, "--model", start.model_dir, "--device", str(gpu.device),
        "--quantize", start.quantize, "--kv-type", start.kv_type, "--until-closed",
    ]  # fmt: skip
    end, held = os.pipe()  # closed when this process ends, however it does: then that one ends, too
    process = subprocess.Popen(command, stdin=end, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    os.close(end)
    try:
        out, err = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Outcome(f"{name} took longer than {within_s:.0f} s")
    finally:
        os.close(held)
    for line in out.splitlines():
        check = json.loads(line)
        if not check["error"] <= check["bound"]:
            return Outcome(
                f"{check['name']} is off by {check['error']:.2g}, of which {check['bound']:g} is rounding"
            )
    if process.returncode == NO_MEMORY:
        return Outcome("too little of its memory is free to check them", lasting=False)
    if process.returncode:
        last = (err.strip().splitlines() or [f"ended with {process.returncode}"])[-1]
        return Outcome(f"{name}: {last[:200]}")
    return Outcome("")


# ---------------------------------------------------------------------- in that process


def scope(model: Model, start: Start, device: torch.device) -> Scope:
    """The shapes of this model; where Triton's interpreter computes, with less of each."""
    from homebox.kernels.triton.checks import FEW_ROWS, ROWS, Heads, Scope

    spec, plan, here = model.spec, plan_for(start, threads=1, kernels="gpu"), device.type != "cpu"
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
            ((spec.heads + 2 * spec.kv_heads) * spec.head_dim, spec.hidden),
            (2 * spec.mlp, spec.hidden),
            (spec.hidden, spec.mlp),
        ),
        kinds=tuple(sorted(kept)),
        products=(1, 4, 33, 200) if here else (1, 3),
        vocab=spec.vocab_size,
        draws=36 if here else 2,
    )


def whole(spec: DecoderSpec, start: Start, texts: Texts = Texts()) -> Iterator[Check]:  # noqa: B008
    """Texts of a whole engine on `start.device`: by how much less likely than the likeliest a token is, to the reference."""
    from homebox.kernels.triton.checks import Check

    with tempfile.TemporaryDirectory() as folder:
        _small_model(Path(folder), spec)
        asked = Start(
            folder, device=start.device, kv_type=start.kv_type, attention="own", max_running=len(texts.lengths),
            max_chunk_tokens=texts.chunk,
        )  # fmt: skip
        # Room for the longest text at its end and little more, so that the others give way and come back.
        longest = -(-(max(texts.lengths) + 2 * texts.answer + 2) // start.block_size)
        block = kv_token_bytes(read(Path(folder)), plan_for(asked, 1, "gpu")) * start.block_size
        room = max(longest + 4, LEAST_BLOCKS) * block
        ours = _House(replace(asked, kv_bytes=room, kv_host_bytes=4 * room))
        right = _House(Start(folder, device="cpu", kernels="reference", max_running=1, kv_bytes=1 << 26))
        generator = torch.Generator().manual_seed(1)
        prompts = [
            torch.randint(3, 1000, (length,), generator=generator).tolist() for length in texts.lengths
        ]
        for turn in (
            "first",
            "second",
        ):  # in the second what was in the cache is known, and steps are captured
            answers = ours.answers(prompts, texts.answer)
            worst = max(right.regret(*both) for both in zip(prompts, answers, strict=True))
            if any(len(answer) != texts.answer for answer in answers):
                worst = float("inf")
            yield Check(f"{len(prompts)} texts of a whole engine, {turn} turn", worst, BOUNDS[ours.kv])
            prompts = [[*prompt, *answer, 5, 7] for prompt, answer in zip(prompts, answers, strict=True)]


def _small_model(folder: Path, spec: DecoderSpec) -> None:
    """Two layers with this one's heads, and random weights whose logits spread as a model's do."""
    from safetensors.torch import save_file

    hidden, mlp, kv_heads, vocab = 256, 512, 2, 1000
    heads, dim = kv_heads * (spec.heads // spec.kv_heads), spec.head_dim
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": hidden,
        "intermediate_size": mlp, "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": dim, "vocab_size": vocab, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(2)

    def matrix(outputs: int, inputs: int, spread: float) -> torch.Tensor:
        return (torch.randn(outputs, inputs, generator=generator) * spread).to(torch.bfloat16)

    ones = torch.ones(hidden, dtype=torch.bfloat16)
    tensors = {"model.embed_tokens.weight": matrix(vocab, hidden, 0.2), "model.norm.weight": ones}
    for layer in range(2):
        shapes = {
            "self_attn.q_proj": (heads * dim, hidden), "self_attn.k_proj": (kv_heads * dim, hidden),
            "self_attn.v_proj": (kv_heads * dim, hidden), "self_attn.o_proj": (hidden, heads * dim),
            "mlp.gate_proj": (mlp, hidden), "mlp.up_proj": (mlp, hidden), "mlp.down_proj": (hidden, mlp),
        }  # fmt: skip
        for name, (outputs, inputs) in shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = matrix(outputs, inputs, inputs**-0.5)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = ones.clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


class _House:
    """An engine in this process, and what it said."""

    def __init__(self, start: Start) -> None:
        from homebox.engine.build import build

        self._said: dict[str, list[Progress]] = {}
        self._engine, ready = build(start, lambda frame: self._hear(frame), lambda *_: None)
        self.kv = ready.kv
        self._count = 0

    def _hear(self, frame: object) -> None:
        for progress in frame.progress if isinstance(frame, StepDone) else ():
            self._said.setdefault(progress.id, []).append(progress)

    def _run(self, prompts: list[list[int]], sampling: Sampling) -> list[list[Progress]]:
        names = [f"r{self._count + i}" for i in range(len(prompts))]
        self._count += len(prompts)
        for name, prompt in zip(names, prompts, strict=True):
            self._engine.submit(Submit(name, name, prompt, sampling))
        while self._engine.step():
            pass
        return [self._said[name] for name in names]

    def answers(self, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        said = self._run(prompts, Sampling(max_tokens=tokens, temperature=0.0, ignore_eos=True))
        return [[token for progress in each for token in progress.tokens] for each in said]

    def regret(self, prompt: list[int], answer: list[int]) -> float:
        """How much likelier than a token of the answer another one would have been, at most."""
        (said,) = self._run([prompt + answer], Sampling(max_tokens=1, temperature=0.0, prompt_logprobs=1))
        scored = [score for progress in said for score in progress.prompt_logprobs][-len(answer) :]
        return max((max(top.logprob for top in score.top) - score.logprob for score in scored), default=0.0)


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
    start = Start(asked.model, device=asked.device, quantize=asked.quantize, kv_type=asked.kv_type)
    try:
        for check in _checks(asked.set, read(Path(asked.model)), start, torch.device(asked.device)):
            print(json.dumps(check._asdict()), flush=True)
    except torch.OutOfMemoryError:
        return NO_MEMORY
    except HomeboxError as error:
        print(error.message, file=sys.stderr)
        return 1
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
