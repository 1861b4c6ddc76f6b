"""When does what happen on a device? Its streams, events, pinned memory and graphs: all of it is here.

A device takes work in order and returns at once; it works while the CPU plans the next step. `wait` is the only place
where the CPU waits for it. Until a mark that was made later has been waited for, host memory that was given to `upload`
or `download` belongs to the device: the CPU neither writes the one nor believes the other.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

from homebox.errors import OutOfMemory

Work = Callable[[], None]
T = TypeVar("T")


class Device(Protocol):
    device: torch.device

    def host(self, size: int) -> torch.Tensor:
        """So many bytes of host memory that the device reads and writes by itself, uint8."""

    def make(self, tensors: Callable[[], T]) -> T:
        """Tensors on the device, made in the order of its work: what fills them is done before what is given next."""

    def upload(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy `source`, which lies in `host` memory, to the device."""

    def download(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy to `target`, which lies in `host` memory."""

    def run(self, work: Work) -> None:
        """Work that only launches kernels and never looks at what they make."""

    def capture(self, work: Work) -> Any:
        """A graph of what `work` would launch; nothing is computed. What it allocates is the graph's own, and may be given to
        the next graph that runs."""

    def replay(self, graph: Any) -> None: ...

    def beside(self, work: Work, after: Any) -> tuple[Any, Any]:
        """Copies, in an order of their own: they go on while other work does. Not before the mark `after`, if there is one. The
        marks before and behind them."""

    def follow(self, mark: Any) -> None:
        """What is given from now on comes after this mark."""

    def mark(self) -> Any:
        """A point in the order of work."""

    def wait(self, mark: Any) -> None:
        """Until all work before the mark is done."""

    def elapsed_ms(self, begin: Any, end: Any) -> float:
        """Between two marks that were waited for."""

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """On the CPU, once all work that was given so far is done."""

    def release(self) -> None:
        """Give memory back that is kept for later."""


class CudaDevice:
    """NVIDIA's, and AMD's under the same names. One stream computes; copies of a step's few kilobytes go in it, too. Another
    moves blocks, by the engines that a GPU has for copies."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream, self._beside = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.synchronize(device)  # weights and blocks were made on another stream

    def host(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8, pin_memory=True)

    def make(self, tensors: Callable[[], T]) -> T:
        with torch.cuda.stream(self._stream):
            return tensors()

    def upload(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self.run(lambda: _copy(source, target))

    def download(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self.run(lambda: _copy(source, target))

    def run(self, work: Work) -> None:
        with torch.cuda.stream(self._stream):
            work()

    def capture(self, work: Work) -> torch.cuda.CUDAGraph:
        # Not by `torch.cuda.graph`, which waits for the device and empties caches: others are being served meanwhile.
        # Thread-local: what another thread does (a copy, an allocation) neither breaks this capture nor gets into it.
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # it is broken, and says so once more
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph

    def replay(self, graph: torch.cuda.CUDAGraph) -> None:
        with torch.cuda.stream(self._stream):
            graph.replay()

    def beside(self, work: Work, after: torch.cuda.Event | None) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        with torch.cuda.stream(self._beside):
            if after is not None:
                self._beside.wait_event(after)
            begin = _event(self._beside)
            work()
            return begin, _event(self._beside)

    def follow(self, mark: torch.cuda.Event) -> None:
        self._stream.wait_event(mark)

    def mark(self) -> torch.cuda.Event:
        return _event(self._stream)

    def wait(self, mark: torch.cuda.Event) -> None:
        mark.synchronize()

    def elapsed_ms(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return begin.elapsed_time(end)

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(self._stream):
            return tensor.cpu()

    def release(self) -> None:
        torch.cuda.empty_cache()


class ImmediateDevice:
    """A CPU: everything is done at once, and a graph is the work itself."""

    device = torch.device("cpu")

    def host(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8)

    def make(self, tensors: Callable[[], T]) -> T:
        return tensors()

    def upload(self, source: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(source)

    def download(self, source: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(source)

    def run(self, work: Work) -> None:
        work()

    def capture(self, work: Work) -> Work:
        return work

    def replay(self, graph: Work) -> None:
        graph()

    def beside(self, work: Work, after: float | None) -> tuple[float, float]:
        begin = time.perf_counter()
        work()
        return begin, time.perf_counter()

    def follow(self, mark: float) -> None:
        pass

    def mark(self) -> float:
        return time.perf_counter()

    def wait(self, mark: float) -> None:
        pass

    def elapsed_ms(self, begin: float, end: float) -> float:
        return (end - begin) * 1e3

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    def release(self) -> None:
        pass


def device_for(device: torch.device) -> Device:
    return ImmediateDevice() if device.type == "cpu" else CudaDevice(device)


_PORTABLE = 1  # cudaHostRegisterPortable: for every GPU


def pin(host: torch.Tensor, device: torch.device) -> None:
    """Have this GPU read and write this memory by itself, for as long as the process lives. As it is: torch's own pinned memory is
    rounded up to a power of two. Raises OutOfMemory where the system does not lock so much."""
    with torch.cuda.device(device):
        failed = int(torch.cuda.cudart().cudaHostRegister(host.data_ptr(), host.nbytes, _PORTABLE))
        if failed:  # CUDA keeps it as the last error, and the next launch would be blamed for it
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=device)
    if failed:
        raise OutOfMemory(
            f"{host.nbytes / 2**30:.1f} GiB of this machine's memory cannot be locked for the GPU (CUDA error {failed})",
            hint="Lower kv_host_memory, or raise the limit on locked memory (ulimit -l, LimitMEMLOCK=).",
        )


def _event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True, blocking=True)  # who waits sleeps
    event.record(stream)
    return event


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)
