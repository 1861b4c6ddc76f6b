"""transformers over HTTP, with the thin wrapper: `generate` on static batches, or its own continuous batching.

    python -m homebox.bench.peers.transformers_server FOLDER --port 8000 --way static|continuous
    python -m homebox.bench.peers.transformers_server FILE.gguf --convert FOLDER

Runs in the environment that has transformers and torch, on bf16 weights from safetensors; the second form makes those
from a GGUF file, dequantised. A static batch is whoever waits when the last one has ended; nobody is let in later.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
from pathlib import Path
from typing import Any

from homebox.bench.peers.wrapper import Asked, Emit, Made, MakeEngine, serve

GATHER_S = 0.05
IDLE_S = 0.05


class Batches:
    """`generate`, one batch after the other: left padding, KV cache, SDPA, greedy."""

    gather_s = GATHER_S

    def __init__(self, folder: str, threads: int, most: int) -> None:
        self._model, self._end, self._most = _load(folder, threads), _end_token(folder), most
        self._waiting: list[Asked] = []

    def add(self, asked: Asked) -> None:
        self._waiting.append(asked)

    def cancel(self, key: int) -> None:
        self._waiting = [each for each in self._waiting if each.key != key]

    def busy(self) -> bool:
        return bool(self._waiting)

    def step(self, emit: Emit) -> None:
        import torch

        batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
        longest = max(len(each.prompt) for each in batch)
        padding = [longest - len(each.prompt) for each in batch]
        ids = [[0] * pad + each.prompt for pad, each in zip(padding, batch, strict=True)]
        mask = [[0] * pad + [1] * (longest - pad) for pad in padding]
        with torch.inference_mode():
            self._model.generate(
                input_ids=torch.tensor(ids),
                attention_mask=torch.tensor(mask),
                max_new_tokens=max(each.max_tokens for each in batch),
                do_sample=False,
                eos_token_id=None if any(each.ignore_eos for each in batch) else self._end,
                pad_token_id=0,
                streamer=Columns(batch, self._end, emit),
            )


class Columns:
    """What `generate` calls with each new column of tokens; the first it gives is the prompts. A row that has its length
    is over for whoever asked, while the batch goes on."""

    def __init__(self, batch: list[Asked], end: int, emit: Emit) -> None:
        self._left = {each.key: each.max_tokens for each in batch}
        self._batch, self._end, self._emit, self._prompts_seen = batch, end, emit, False

    def put(self, tokens: Any) -> None:
        if not self._prompts_seen:
            self._prompts_seen = True
            return
        made = []
        for asked, token in zip(self._batch, tokens.reshape(-1).tolist(), strict=True):
            if self._left[asked.key]:
                self._left[asked.key] -= 1
                ended = "length" if not self._left[asked.key] else None
                if token == self._end and not asked.ignore_eos:
                    self._left[asked.key], ended = 0, "stop"
                made.append(Made(asked.key, [token], ended))
        self._emit(made)

    def end(self) -> None:
        """`generate` says that it is over; every row has been told."""


class Continuous:
    """transformers' own manager, which has a thread of its own; a step here waits for what it made."""

    gather_s = 0.0

    def __init__(self, folder: str, threads: int, most: int) -> None:
        import torch
        from transformers import ContinuousBatchingConfig, GenerationConfig

        self._end = _end_token(folder)
        model = _load(folder, threads)
        config = ContinuousBatchingConfig(
            page_size=256, num_blocks=64 * most // 16, max_batch_tokens=512, allow_block_sharing=False
        )
        with torch.inference_mode():
            self._manager = model.init_continuous_batching(
                generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
                continuous_batching_config=config,
            )
            self._manager.start()
        self._sent: dict[int, int] = {}  # tokens that each running request has had

    def add(self, asked: Asked) -> None:
        self._sent[asked.key] = 0
        self._manager.add_request(
            asked.prompt,
            request_id=str(asked.key),
            max_new_tokens=asked.max_tokens,
            streaming=True,
            eos_token_id=-1 if asked.ignore_eos else self._end,
        )

    def cancel(self, key: int) -> None:
        if self._sent.pop(key, None) is not None:
            self._manager.cancel_request(str(key))

    def busy(self) -> bool:
        return bool(self._sent)

    def step(self, emit: Emit) -> None:
        output = self._manager.get_result(timeout=IDLE_S)
        made = []
        while output is not None:
            made += self._new(output)
            try:
                output = self._manager.output_router.output_queue.get_nowait()
            except queue.Empty:
                output = None
        if made:
            emit(made)
        elif not self._manager.is_running():
            emit([Made(key, [], "error") for key in self._sent])
            self._sent.clear()

    def _new(self, output: Any) -> list[Made]:
        key = int(output.request_id)
        if key not in self._sent:  # cancelled
            return []
        tokens = [int(token) for token in output.generated_tokens[self._sent[key] :]]
        self._sent[key] += len(tokens)
        ended = None
        if output.is_finished():
            ended = "error" if output.error else "length"
            del self._sent[key]
        return [Made(key, tokens, ended)] if tokens or ended else []


def convert(gguf: Path, folder: Path) -> None:
    """bf16 safetensors of a GGUF file, and its tokeniser beside them. Appears whole or not at all."""
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    made = folder.with_name(folder.name + ".new")
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # what is saved is not quantised any more
    model.save_pretrained(made)
    for name in ("tokenizer.json", "chat_template.jinja"):
        if (gguf.parent / name).exists():
            shutil.copy(gguf.parent / name, made / name)
    (made / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    made.rename(folder)


def _load(folder: str, threads: int) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa")
    return model.eval()


def _end_token(folder: str) -> int:
    from transformers import AutoConfig

    end = AutoConfig.from_pretrained(folder).eos_token_id
    return int(end[0] if isinstance(end, list) else end)


WAYS: dict[str, MakeEngine] = {"static": Batches, "continuous": Continuous}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--convert", type=Path, metavar="FOLDER")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--way", choices=WAYS, default="continuous")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--most", type=int, default=32, help="answers in a batch")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"  # everything is on the disk: nothing is asked elsewhere
    if args.convert:
        convert(args.model, args.convert)
    else:
        arguments = (str(args.model), args.threads, args.most)
        serve(WAYS[args.way], arguments, args.model / "tokenizer.json", args.port)


if __name__ == "__main__":
    main()
