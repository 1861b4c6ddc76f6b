"""A device without one: it does what it is told when somebody waits for it, and no earlier.

So whoever changes host memory that an upload has not read yet, or reads what a download has not written, gets the wrong
numbers, as on a GPU. What goes on beside is done as early as can be or as late as can be, by a die: who counts on an order that
nobody said gets the wrong numbers in one of them. A captured graph is a list of the operations that were seen, played again on the same memory; an
operation that looks at its numbers cannot be captured. Memory can run out, or the device be lost, at any call.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

T = TypeVar("T")
POISON = 0xA5
_LOOKING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")


class Lost(RuntimeError):
    """As torch says it when a GPU is gone."""


class _Stream:
    """Work in order, begun when somebody waits for it."""

    def __init__(self) -> None:
        self.queue: deque[Callable[[], None]] = deque()
        self.given = self.done = 0

    def give(self, work: Callable[[], None]) -> None:
        self.queue.append(work)
        self.given += 1

    def mark(self) -> _Mark:
        return _Mark(self, self.given)


class _Mark(NamedTuple):
    stream: _Stream
    count: int

    @property
    def passed(self) -> bool:
        return self.stream.done >= self.count

    def reach(self) -> None:
        while not self.passed:
            self.stream.queue.popleft()()
            self.stream.done += 1


class FakeDevice:
    device = torch.device("cpu")

    def __init__(self, fails: Callable[[str], str | None] = lambda site: None) -> None:
        """`fails(site)` is asked at each call that takes memory or reaches the device: None, "out of memory" or "lost"."""
        self._fails = fails
        self._stream, self._beside = _Stream(), _Stream()
        self._die, self.early = random.Random(0), 0.5
        self.after = 12  # operations that are done before memory runs out
        self.captures = self.replays = self.ahead = 0  # `ahead`: the most work that waited to be done

    def host(self, size: int) -> torch.Tensor:
        self._site("host")
        return torch.full((size,), POISON, dtype=torch.uint8)

    def make(self, tensors: Callable[[], T]) -> T:
        self._site("make")
        return tensors()

    def upload(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self._site("upload")
        self._give(lambda: _copy(source, target))

    def download(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self._site("download")
        target.fill_(POISON)
        self._give(lambda: _copy(source, target))

    def run(self, work: Callable[[], None]) -> None:
        failing = self._fails("run")
        if failing == "out of memory":
            # A GPU runs out in the middle: what was launched before that is computed.
            self._give(lambda: _begin(work, self.after))
        self._raise(failing)
        self._give(work)

    def capture(self, work: Callable[[], None]) -> list[Callable[[], None]]:
        self._site("capture")
        self.captures += 1
        self.wait(self.mark())  # to see the operations they are done here, so their numbers are to be there
        with _Recorder() as recorder, _launches_seen_by(recorder):
            work()
        recorder.undo()
        return recorder.steps

    def replay(self, graph: list[Callable[[], None]]) -> None:
        self._site("replay")
        self.replays += 1
        for step in graph:
            self._give(step)

    def beside(self, work: Callable[[], None], after: _Mark | None) -> tuple[_Mark, _Mark]:
        self._site("beside")
        if after is not None:
            self._beside.give(after.reach)
        begin = self._beside.mark()
        self._beside.give(work)
        if self._die.random() < self.early:
            self._beside.mark().reach()
        return begin, self._beside.mark()

    def follow(self, mark: _Mark) -> None:
        self._give(mark.reach)

    def mark(self) -> _Mark:
        return self._stream.mark()

    def wait(self, mark: _Mark) -> None:
        self._site("wait")
        mark.reach()

    def elapsed_ms(self, begin: _Mark, end: _Mark) -> float:
        assert begin.passed and end.passed
        return 30.0

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        self.wait(self.mark())
        return tensor.clone()

    def release(self) -> None:
        pass

    def _give(self, work: Callable[[], None]) -> None:
        self._stream.give(work)
        self.ahead = max(self.ahead, len(self._stream.queue))

    def _site(self, name: str) -> None:
        self._raise(self._fails(name))

    @staticmethod
    def _raise(failing: str | None) -> None:
        if failing == "out of memory":
            raise torch.OutOfMemoryError("no memory, it is pretended")
        if failing == "lost":
            raise Lost("CUDA error: the device is gone, it is pretended")


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source)


class _Enough(Exception):
    pass


def _begin(work: Callable[[], None], operations: int) -> None:
    """Its first operations, then none."""

    class Few(TorchDispatchMode):
        left = operations

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.left -= 1
            if self.left < 0:
                raise _Enough
            return func(*args, **(kwargs or {}))

    with contextlib.suppress(_Enough), Few():
        work()


class _Recorder(TorchDispatchMode):
    """Keeps what is done, and undoes it."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Callable[[], None]] = []
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.__name__.split(".")[0]
        assert name not in _LOOKING, f"a captured step looks at the device: {name}"
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._before.append((value, value.clone()))
        made = func(*args, **kwargs)
        # What is new is computed into its old place again; what shares memory with an argument is a view, or done in place.
        given = {_memory(leaf) for leaf in _tensors((args, kwargs))}
        fresh = [(i, leaf) for i, leaf in enumerate(_tensors(made)) if _memory(leaf) not in given]

        def again() -> None:
            result = _tensors(func(*args, **kwargs))
            for i, old in fresh:
                old.copy_(result[i])

        self.steps.append(again)
        return made

    def kernel(self, launch: Callable[[], None], arguments: Any) -> None:
        """One launch of a kernel that torch does not see."""
        with _disable_current_modes():
            self._before += [(tensor, tensor.clone()) for tensor in _tensors(arguments)]
            launch()
        self.steps.append(launch)

    def undo(self) -> None:
        for tensor, before in reversed(self._before):
            tensor.copy_(before)


@contextlib.contextmanager
def _launches_seen_by(recorder: _Recorder) -> Iterator[None]:
    """Triton's interpreter runs a kernel as one operation."""
    try:
        from triton.runtime.interpreter import GridExecutor
    except ImportError:
        yield
        return
    launch = GridExecutor.__call__

    def seen(self: Any, *args: Any, **kwargs: Any) -> None:
        recorder.kernel(lambda: launch(self, *args, **kwargs), (args, kwargs))

    GridExecutor.__call__ = seen
    try:
        yield
    finally:
        GridExecutor.__call__ = launch


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)
