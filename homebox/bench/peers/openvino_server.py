"""OpenVINO GenAI's continuous batching over HTTP: its own pipeline, `add_request` and `step`, behind the thin wrapper.

    python -m homebox.bench.peers.openvino_server FILE.gguf --port 8000
    python -m homebox.bench.peers.openvino_server FILE.gguf --in-process 1,4,16,32

Runs in the environment that has openvino-genai. The second form prints output tokens a second without a server, JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from homebox.bench.peers.wrapper import Asked, Emit, Made, in_process, serve


class OpenVino:
    """The pipeline, and the requests that are in it."""

    gather_s = 0.0

    def __init__(self, gguf: str, threads: int, cache_gb: int, batch_tokens: int) -> None:
        import numpy
        import openvino
        import openvino_genai

        self._library, self._tensor = openvino_genai, lambda ids: openvino.Tensor(numpy.array([ids]))
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = cache_gb
        scheduler.max_num_batched_tokens = batch_tokens
        scheduler.dynamic_split_fuse = True
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            gguf, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
        )
        self._handles: dict[int, Any] = {}

    def add(self, asked: Asked) -> None:
        config = self._library.GenerationConfig()
        config.max_new_tokens, config.ignore_eos = asked.max_tokens, asked.ignore_eos
        config.do_sample = False
        if not asked.ignore_eos:
            config.eos_token_id = self._pipeline.get_tokenizer().get_eos_token_id()
        self._handles[asked.key] = self._pipeline.add_request(asked.key, self._tensor(asked.prompt), config)

    def cancel(self, key: int) -> None:
        if handle := self._handles.pop(key, None):
            handle.cancel()

    def busy(self) -> bool:
        return bool(self._pipeline.has_non_finished_requests())

    def step(self, emit: Emit) -> None:
        self._pipeline.step()
        made = []
        for key, handle in list(self._handles.items()):
            if new := _read(key, handle):
                made.append(new)
                if new.ended:
                    del self._handles[key]
        if made:
            emit(made)


def _read(key: int, handle: Any) -> Made | None:
    tokens: list[int] = []
    ended = None
    while handle.can_read():
        for output in handle.read().values():
            tokens += output.generated_ids
            if output.finish_reason.name != "NONE":
                ended = output.finish_reason.name.lower()
    if handle.get_status().name == "IGNORED":  # out of cache
        ended = "error"
    return Made(key, tokens, ended) if tokens or ended else None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("gguf", type=Path, help="tokenizer.json lies beside it")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache-gb", type=int, default=4)
    parser.add_argument("--batch-tokens", type=int, default=256, help="of a step, prompts included")
    parser.add_argument("--in-process", metavar="STREAMS", help="measure without a server: 1,4,16,32")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=100)
    args = parser.parse_args()
    arguments = (str(args.gguf), args.threads, args.cache_gb, args.batch_tokens)
    if args.in_process is None:
        serve(OpenVino, arguments, args.gguf.parent / "tokenizer.json", args.port)
        return
    engine = OpenVino(*arguments)
    in_process(engine, 1, 8, 16)  # warm
    counts = [int(each) for each in args.in_process.split(",")]
    print(json.dumps({n: in_process(engine, n, args.max_tokens, args.prompt_tokens) for n in counts}))


if __name__ == "__main__":
    main()
