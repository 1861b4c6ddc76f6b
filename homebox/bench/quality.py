"""Does the engine's configuration still say what the model would have said?

    OMP_WAIT_POLICY=PASSIVE python -m homebox.bench.quality MODEL_DIR [--batches 1,4,16,32]

Next-token agreement and the mean Kullback-Leibler divergence of the configuration that the engine uses by default, from
the same checkpoint's weights as fp32 with the reference kernels, over the texts in `texts/`: at every position of a text
both get the text so far and say what comes next. Once as prompts are read, a window of text in one chunk, and once as
answers are written, a token a step with so many texts in the batch. All that is needed of each side is a function from
token ids to logits for every position (`Teacher`). A process of its own, since it holds the model twice; progress and
result are JSON lines on standard output, which `homebox bench --quality` reads (and which sets OMP_WAIT_POLICY as the
engine's process does: threads that spin while they wait make this many times slower on a machine that is busy).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

from homebox.engine.build import parts
from homebox.engine.compute import choose
from homebox.errors import HomeboxError, UsageError
from homebox.kernels.attention import Attention, BatchShape
from homebox.library import manifest
from homebox.model.decoder import AnyDecoder
from homebox.text.tokens import Tokenizer
from homebox.wire.frames import Start

BATCHES = (1, 4, 16, 32)
TEXTS = Path(__file__).with_name("texts")
LEAST_AGREEMENT, MOST_KL = 0.97, 0.01
_LEAST_WINDOWS = 6  # measured where the batch has fewer
_BLOCK = 16

Windows = Sequence[Sequence[int]]  # token ids, all equally many
Progress = Callable[[str, int, int], None]


def windows(model_dir: Path, count: int) -> list[list[int]]:
    """All texts, one behind the other, in so many windows; each begins as the model wants a text to begin."""
    tokenizer = Tokenizer.load(model_dir)
    text = "\n\n".join(file.read_text(encoding="utf-8") for file in sorted(TEXTS.iterdir()))
    ids = tokenizer.encode(text)
    begin = [ids.pop(0)] if tokenizer.manifest.add_bos else []
    size = len(ids) // count
    return [begin + ids[i * size : (i + 1) * size] for i in range(count)]


class Teacher:
    """One side: says for every position of a text what may come next. Each text has blocks of its own."""

    def __init__(self, decoder: AnyDecoder, attention: Attention, longest: int) -> None:
        self._decoder, self._attention = decoder, attention
        self._blocks_each = -(-longest // attention.cache.block_size)

    def at_once(self, texts: Windows) -> Iterator[torch.Tensor]:
        """`[texts, vocab]` for each position. Every text is read as one chunk, alone."""
        with torch.inference_mode():
            hidden = torch.stack([self._step([text], 0, place) for place, text in enumerate(texts)])
        for position in range(hidden.shape[1]):
            with torch.inference_mode():
                logits = self._decoder.logits(hidden[:, position].contiguous())
            yield logits

    def step_by_step(self, texts: Windows) -> Iterator[torch.Tensor]:
        """`[texts, vocab]` for each position, from a step with one token of each text."""
        for position in range(len(texts[0])):
            with torch.inference_mode():
                logits = self._decoder.logits(self._step([[text[position]] for text in texts], position))
            yield logits

    def _step(self, tokens: Windows, start: int, first: int = 0) -> torch.Tensor:
        """Hidden states, `[rows * tokens, hidden]`, of the next tokens of the texts from number `first` on."""
        rows, count = len(tokens), len(tokens[0])
        each = self._blocks_each
        tables = [range((first + row) * each, (first + row + 1) * each) for row in range(rows)]
        groups = len(self._attention.windows)
        self._attention.plan(BatchShape.of([start] * rows, [count] * rows, [tables] * groups))
        ids = torch.tensor([token for each in tokens for token in each])
        positions = torch.arange(start, start + count).repeat(rows)
        return self._decoder.forward(ids, positions, self._attention)


def engine_side(model_dir: Path, texts: int, longest: int, report: Progress) -> Teacher:
    """As the engine computes by default. Raises UsageError where its KV memory is too small for the texts."""
    start = Start(str(model_dir))
    _, decoder, attention, blocks = parts(start, report)
    needed = texts * -(-longest // start.block_size)
    if blocks < needed:
        raise UsageError(
            f"the engine has {blocks} blocks of KV memory here; {texts} texts of {longest} tokens need {needed}",
            hint="Free some memory, or measure fewer at once: --batches 1,4",
        )
    return Teacher(decoder, attention, longest)


def reference_side(model_dir: Path, texts: int, longest: int, report: Progress) -> Teacher:
    """The checkpoint's weights as fp32, and the reference kernels."""
    compute = choose(Start(str(model_dir), kernels="reference"), report).load()
    decoder, attention = compute.with_blocks(texts * -(-longest // _BLOCK))
    return Teacher(decoder, attention, longest)


@dataclass
class Tally:
    """What has been compared so far. `kl` in nats; the losses are of the text's own next token, for perplexity."""

    same: int = 0
    kl: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    reference_loss: list[float] = field(default_factory=list)

    def add(self, wanted: torch.Tensor, got: torch.Tensor, following: Sequence[int] | None) -> None:
        """Both `[texts, vocab]`; `following`: the token that comes next in each text."""
        p, q = torch.log_softmax(wanted.double(), -1), torch.log_softmax(got.double(), -1)
        self.same += int((wanted.argmax(-1) == got.argmax(-1)).sum())
        self.kl += (p.exp() * (p - q)).sum(-1).tolist()
        if following is not None:
            at = torch.tensor(following)[:, None]
            self.loss += (-q.gather(1, at)).flatten().tolist()
            self.reference_loss += (-p.gather(1, at)).flatten().tolist()

    def found(self) -> dict[str, Any]:
        ordered = sorted(self.kl)
        return {
            "positions": len(ordered),
            "agreement": self.same / len(ordered),
            "kl_mean": math.fsum(ordered) / len(ordered),
            "kl_p99": ordered[int(0.99 * len(ordered))],
            "perplexity": math.exp(math.fsum(self.loss) / len(self.loss)),
            "perplexity_reference": math.exp(math.fsum(self.reference_loss) / len(self.reference_loss)),
        }


def compare(
    tally: Tally, wanted: Iterator[torch.Tensor], got: Iterator[torch.Tensor], texts: Windows
) -> None:
    """Position by position, so that nobody holds all logits."""
    following: list[Sequence[int] | None] = [*[*zip(*texts, strict=True)][1:], None]
    for reference, candidate, after in zip(wanted, got, following, strict=True):
        tally.add(reference, candidate, after)


def chosen(texts: Windows, batch: int) -> list[Windows]:
    """Batches of so many texts, from all over them; at least six texts where a batch has fewer."""
    count = min(len(texts) // batch * batch, batch * -(-_LEAST_WINDOWS // batch))
    picked = [texts[i * len(texts) // count] for i in range(count)]
    return [picked[first : first + batch] for first in range(0, count, batch)]


def measure(model_dir: Path, texts: Windows, batches: Sequence[int], report: Progress) -> dict[str, Any]:
    """All that `--json` of `homebox bench` says under `quality`. There are at least as many texts as the largest batch."""
    longest = len(texts[0])
    reference = reference_side(model_dir, len(texts), longest, report)
    engine = engine_side(model_dir, len(texts), longest, report)
    cases: list[tuple[str, int, list[Windows]]] = [("prompt", 1, [texts])]
    cases += [("answer", batch, chosen(texts, batch)) for batch in batches]
    total, done, rows = sum(len(batches_of) for _, _, batches_of in cases), 0, []
    for read, batch, batches_of in cases:
        tally = Tally()
        for some in batches_of:
            report(f"quality, {read}s, batch {batch}", done, total)
            got = engine.at_once(some) if read == "prompt" else engine.step_by_step(some)
            compare(tally, reference.at_once(some), got, some)
            done += 1
        rows.append({"read": read, "batch": batch} | tally.found())
    return {
        "reference": "the same checkpoint, dequantised to fp32, reference kernels",
        "tokens": longest * len(texts),
        "goal": {"agreement": LEAST_AGREEMENT, "kl_mean": MOST_KL},
        "rows": rows,
    }


def check_memory(model_dir: Path) -> None:
    """The reference alone takes four bytes a parameter. Raises UsageError where there is no room for both."""
    needed, free = manifest.read(model_dir).parameters * 8, psutil.virtual_memory().available
    if needed > free:
        raise UsageError(
            f"the model twice, once as fp32, needs up to {needed / 2**30:.1f} GiB; {free / 2**30:.1f} GiB are free",
            hint="Measure without --quality, or with a smaller model.",
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model_dir", type=Path, help="a folder of the library")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    args = parser.parse_args()

    def say(**line: Any) -> None:
        print(json.dumps(line), flush=True)

    try:
        check_memory(args.model_dir)
        batches = [int(each) for each in args.batches.split(",")]
        texts = windows(args.model_dir, max(*batches, _LEAST_WINDOWS))
        found = measure(args.model_dir, texts, batches, lambda what, n, of: say(stage=what, done=n, total=of))
    except HomeboxError as error:
        say(error=error.as_dict())
        raise SystemExit(1) from None
    say(quality=found)


if __name__ == "__main__":
    main()
