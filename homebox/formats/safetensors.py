"""What is in a safetensors file, or in a model folder made of several, and where do the tensors lie?

The loader takes its weights through this, the library its facts. The layout is the one documented at
https://github.com/huggingface/safetensors#format: eight bytes of header length, JSON, then the data. As with GGUF the
header is not to be believed: lengths, shapes and extents are checked against the file before anybody uses them. It
knows nothing of models or torch; a tensor's bytes are handed out uncopied, its `dtype` as the format spells it.
"""

from __future__ import annotations

import mmap
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import NoReturn

import msgspec

from homebox.errors import BadFile

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_DIMENSIONS = 8
INDEX = "model.safetensors.index.json"

ELEMENT_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies: row-major `shape`, `dtype` as in ELEMENT_BYTES, `offset` from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Safetensors:
    """An open file: `tensors`, `metadata` (the writer's own strings) and `data`. A context manager.

    Views that `data` gave out stay valid after closing, and keep the map alive, until they are gone.
    """

    def __init__(
        self, path: Path, source: mmap.mmap, tensors: dict[str, TensorInfo], metadata: dict[str, str]
    ) -> None:
        self.path = path
        self.tensors = tensors
        self.metadata = metadata
        self._source = source
        self._view = memoryview(source)

    def data(self, name: str) -> memoryview:
        """A tensor's bytes, read-only and not copied. Raises KeyError for a name that is not in the file."""
        info = self.tensors[name]
        return self._view[info.offset : info.offset + info.nbytes]

    def close(self) -> None:
        """Let go of the map. Calling it again does nothing."""
        self._view.release()
        with suppress(
            BufferError
        ):  # a view that was given out is still in use: the map goes with the last of them
            self._source.close()

    def __enter__(self) -> Safetensors:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Folder:
    """All safetensors files of a model as one: `tensors`, `files` and `data`, like a single file. A context manager."""

    def __init__(self, path: Path, files: list[Safetensors]) -> None:
        self.path = path
        self.files = [file.path for file in files]
        self.tensors: dict[str, TensorInfo] = {}
        self._files = files
        self._home: dict[str, Safetensors] = {}
        for file in files:
            for name, info in file.tensors.items():
                if name in self.tensors:
                    raise BadFile(
                        f"{path}: tensor {name!r} is in {self._home[name].path.name} and {file.path.name}"
                    )
                self.tensors[name] = info
                self._home[name] = file

    def data(self, name: str) -> memoryview:
        """A tensor's bytes, read-only and not copied. Raises KeyError for a name that is in no file."""
        return self._home[name].data(name)

    def close(self) -> None:
        """Let go of all files. Calling it again does nothing."""
        for file in self._files:
            file.close()

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


def open_safetensors(path: Path) -> Safetensors:
    """Open and check one file. Raises BadFile for anything that is not a whole, well-formed safetensors file."""
    try:
        with path.open("rb") as file:
            source = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise BadFile(f"{path}: the file is empty", hint="Fetch it again.") from None
    try:
        tensors, metadata = _parse(path, source)
    except BaseException:
        source.close()
        raise
    return Safetensors(path, source, tensors, metadata)


def open_folder(path: Path) -> Folder:
    """Open every safetensors file of a model: those its index names, else all that are there.

    Raises BadFile when there is none, when a shard is missing or damaged, when the index and the shards disagree, or
    when two files hold one name.
    """
    index = path / INDEX
    listed = _read_index(index) if index.is_file() else None
    names = (
        sorted(set(listed.values())) if listed else sorted(file.name for file in path.glob("*.safetensors"))
    )
    if not names:
        raise BadFile(
            f"{path}: no safetensors files here", hint="A model folder holds at least one *.safetensors."
        )
    with ExitStack() as opened:
        folder = Folder(path, [opened.enter_context(open_safetensors(path / name)) for name in names])
        for tensor, shard in (listed or {}).items():
            home = folder._home.get(tensor)
            if home is None or home.path.name != shard:
                raise BadFile(
                    f"{index}: tensor {tensor!r} is said to be in {shard}, and is not",
                    hint="Fetch the model again.",
                )
        opened.pop_all()
        return folder


def _read_index(path: Path) -> dict[str, str]:
    try:
        listed = msgspec.json.decode(path.read_bytes(), type=_Index).weight_map
    except (msgspec.DecodeError, OSError, RecursionError) as error:
        raise BadFile(f"{path}: {error}") from None
    for shard in set(listed.values()):
        if shard != PurePosixPath(shard).name or not shard.endswith(".safetensors") or "\0" in shard:
            raise BadFile(f"{path}: {shard!r} is not the name of a safetensors file in the same folder")
    return listed


def _parse(path: Path, source: mmap.mmap) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    size = len(source)

    def bad(what: str) -> NoReturn:
        raise BadFile(f"{path}: {what}", hint="The file is cut short or damaged: fetch it again.")

    if size < 8:
        bad(f"{size} bytes are no safetensors file")
    length = int.from_bytes(source[:8], "little")
    start = 8 + length
    if length > MAX_HEADER_BYTES or start > size:
        bad(f"a header of {length} bytes in a file of {size}; at most {MAX_HEADER_BYTES} are read")
    try:
        raw = msgspec.json.decode(source[8:start], type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(raw.pop("__metadata__", b"{}"), type=dict[str, str])
        entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        bad(f"the header is not as it should be: {error}")
    tensors: dict[str, TensorInfo] = {}
    for name, entry in entries.items():
        begin, end = entry.data_offsets
        if entry.dtype not in ELEMENT_BYTES:
            bad(f"tensor {name!r} has the unknown type {entry.dtype!r}")
        if len(entry.shape) > MAX_DIMENSIONS:
            bad(f"tensor {name!r} has {len(entry.shape)} dimensions; at most {MAX_DIMENSIONS} are read")
        if not 0 <= begin <= end <= size - start:
            bad(f"tensor {name!r} lies at bytes {begin} to {end} of {size - start}")
        needed = _nbytes(entry.shape, ELEMENT_BYTES[entry.dtype])
        if needed != end - begin:
            bad(
                f"tensor {name!r}, {entry.dtype} of shape {entry.shape}, has {end - begin} bytes where {needed} belong"
            )
        tensors[name] = TensorInfo(name, entry.dtype, tuple(entry.shape), start + begin, needed)
    end_of_last = start
    for info in sorted(tensors.values(), key=lambda info: (info.offset, info.nbytes)):
        if info.offset != end_of_last:  # the format allows no holes; a name written twice shows as one
            bad(f"tensor {info.name!r} starts at byte {info.offset}, the one before it ends at {end_of_last}")
        end_of_last = info.offset + info.nbytes
    if end_of_last != size:
        bad(f"the tensors end at byte {end_of_last}, the file at {size}")
    return tensors, metadata


def _nbytes(shape: list[int], element_bytes: int) -> int:
    """The bytes of a shape, or -1 where a dimension is negative. A scalar's shape is empty."""
    total = element_bytes
    for size in shape:
        if size < 0:
            return -1
        total *= size
    return total
