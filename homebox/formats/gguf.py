"""What is in a GGUF file, and where do its tensors lie?

Reads the header of GGUF versions 2 and 3 (little-endian) over a read-only memory map; the loader and the library call
it. The layout is the one documented at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. A header is not to
be believed: every count, length, offset and product is compared with the file's size, and with the caps below, before
anything is allocated for it. It knows nothing of models, tokenisers or torch: what a key means is the caller's business.
"""

from __future__ import annotations

import mmap
import struct
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from types import TracebackType

from homebox.errors import BadFile

MAX_KEYS = 65_536
MAX_TENSORS = 131_072
MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 65_535
MAX_STRING_BYTES = 64 * 2**20
MAX_ELEMENTS = (
    8_000_000  # array elements of all keys together; the largest vocabularies have some 300,000 tokens
)
MAX_HEADER_BYTES = 512 * 2**20
MAX_ALIGNMENT = 2**20

Scalar = int | float | str | bool
Value = Scalar | list[Scalar]


class TensorType(IntEnum):
    """A ggml tensor type: its number in the file, and how many elements one block of how many bytes holds."""

    block_elements: int
    block_bytes: int

    def __new__(cls, code: int, block_elements: int, block_bytes: int) -> TensorType:
        member = int.__new__(cls, code)
        member._value_ = code
        member.block_elements = block_elements
        member.block_bytes = block_bytes
        return member

    F32 = 0, 1, 4
    F16 = 1, 1, 2
    Q4_0 = 2, 32, 18
    Q4_1 = 3, 32, 20
    Q5_0 = 6, 32, 22
    Q5_1 = 7, 32, 24
    Q8_0 = 8, 32, 34
    Q8_1 = 9, 32, 40
    Q2_K = 10, 256, 84
    Q3_K = 11, 256, 110
    Q4_K = 12, 256, 144
    Q5_K = 13, 256, 176
    Q6_K = 14, 256, 210
    Q8_K = 15, 256, 292
    IQ2_XXS = 16, 256, 66
    IQ2_XS = 17, 256, 74
    IQ3_XXS = 18, 256, 98
    IQ1_S = 19, 256, 50
    IQ4_NL = 20, 32, 18
    IQ3_S = 21, 256, 110
    IQ2_S = 22, 256, 82
    IQ4_XS = 23, 256, 136
    I8 = 24, 1, 1
    I16 = 25, 1, 2
    I32 = 26, 1, 4
    I64 = 27, 1, 8
    F64 = 28, 1, 8
    IQ1_M = 29, 256, 56
    BF16 = 30, 1, 2
    TQ1_0 = 34, 256, 54
    TQ2_0 = 35, 256, 66
    MXFP4 = 39, 32, 17
    NVFP4 = 40, 64, 36
    Q1_0 = 41, 128, 18


SUPPORTED = frozenset({TensorType.F32, TensorType.F16, TensorType.BF16, TensorType.Q4_1, TensorType.Q8_0})

_BY_CODE = {int(member): member for member in TensorType}
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_SIZES = {code: struct.calcsize(letter) for code, letter in _SCALARS.items()}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies. `shape` is row-major, as torch writes it; `offset` is from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    nbytes: int


class GGUF:
    """An open file: `version`, `metadata`, `tensors`, and `data` for a tensor's raw bytes.

    A context manager. Views that `data` gave out stay valid after closing, and keep the map alive, until they are gone.
    """

    def __init__(
        self,
        path: Path,
        view: memoryview,
        source: mmap.mmap,
        version: int,
        metadata: dict[str, Value],
        tensors: dict[str, TensorInfo],
    ) -> None:
        self.path = path
        self.version = version
        self.metadata = metadata
        self.tensors = tensors
        self._view = view
        self._source = source

    def data(self, name: str) -> memoryview:
        """A tensor's bytes as they are in the file: read-only, not copied, `tensors[name].nbytes` long.

        Raises KeyError for a name that is not in the file, BadFile for a type that nothing here computes with.
        """
        info = self.tensors[name]
        if info.type not in SUPPORTED:
            kinds = ", ".join(sorted(kind.name for kind in SUPPORTED))
            raise BadFile(
                f"{self.path}: tensor {name!r} is {info.type.name}, which is not supported",
                hint=f"Take a file whose tensors are {kinds}.",
            )
        return self._view[info.offset : info.offset + info.nbytes]

    def close(self) -> None:
        """Let go of the map. Calling it again does nothing."""
        self._view.release()
        with suppress(
            BufferError
        ):  # a view that was given out is still in use: the map goes with the last of them
            self._source.close()

    def __enter__(self) -> GGUF:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_gguf(path: Path) -> GGUF:
    """Open and check one file. Raises BadFile for anything that is not a whole, well-formed GGUF v2 or v3 file."""
    try:
        with path.open("rb") as file:
            source = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise BadFile(f"{path}: the file is empty", hint="Fetch it again.") from None
    view = memoryview(source)
    try:
        return _parse(path, view, source)
    except BaseException:
        _let_go(view, source)
        raise


def _let_go(view: memoryview, source: mmap.mmap) -> None:
    view.release()
    with suppress(BufferError):  # a part of it is still in use somewhere: the map goes with the last of them
        source.close()


def _parse(path: Path, view: memoryview, source: mmap.mmap) -> GGUF:
    cursor = _Cursor(path, view)
    if bytes(cursor.take(4, "magic")) != b"GGUF":
        raise cursor.bad(f"not a GGUF file: it starts with {bytes(view[:4])!r}")
    version = cursor.u32("version")
    if version not in (2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        why = "a big-endian file" if swapped in (2, 3) else f"GGUF version {version}"
        raise cursor.bad(f"{why} is not supported", hint="Convert it to a little-endian GGUF of version 3.")
    tensor_count = cursor.count("tensor count", MAX_TENSORS, 8 + 4 + 8 + 4 + 8)
    key_count = cursor.count("key count", MAX_KEYS, 8 + 1 + 4 + 1)
    metadata: dict[str, Value] = {}
    for _ in range(key_count):
        key = cursor.string("key", MAX_NAME_BYTES)
        if not key or key in metadata:
            raise cursor.bad(f"key {key!r} is there twice" if key else "an empty key")
        metadata[key] = cursor.value(key, cursor.u32(f"type of {key!r}"))
    infos = [cursor.tensor() for _ in range(tensor_count)]
    return GGUF(path, view, source, version, metadata, _place(cursor, infos, _alignment(cursor, metadata)))


def _alignment(cursor: _Cursor, metadata: dict[str, Value]) -> int:
    alignment = metadata.get("general.alignment", 32)
    sane = isinstance(alignment, int) and not isinstance(alignment, bool) and 8 <= alignment <= MAX_ALIGNMENT
    if not isinstance(alignment, int) or not sane or alignment & (alignment - 1):
        raise cursor.bad(f"alignment {alignment!r}: a power of two from 8 to {MAX_ALIGNMENT} is needed")
    return alignment


def _place(cursor: _Cursor, infos: list[TensorInfo], alignment: int) -> dict[str, TensorInfo]:
    """Turn offsets that count from the data section into offsets in the file, each checked against the file's end."""
    start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for info in infos:
        if info.name in tensors:
            raise cursor.bad(f"tensor {info.name!r} is there twice")
        if info.offset % alignment:
            raise cursor.bad(
                f"tensor {info.name!r} at offset {info.offset} is not aligned to {alignment} bytes"
            )
        if start + info.offset + info.nbytes > cursor.size:
            raise cursor.bad(
                f"tensor {info.name!r} ends at byte {start + info.offset + info.nbytes}, the file at {cursor.size}",
                hint="The file is cut short or damaged: fetch it again.",
            )
        tensors[info.name] = TensorInfo(info.name, info.shape, info.type, start + info.offset, info.nbytes)
    ordered = sorted(tensors.values(), key=lambda info: info.offset)
    for left, right in pairwise(ordered):
        if left.offset + left.nbytes > right.offset:
            raise cursor.bad(f"tensors {left.name!r} and {right.name!r} overlap at byte {right.offset}")
    return tensors


class _Cursor:
    """Reads forward through the header; nothing is read or made before `need` has said that it is there."""

    def __init__(self, path: Path, view: memoryview) -> None:
        self.path = path
        self.view = view
        self.size = len(view)
        self.end = min(self.size, MAX_HEADER_BYTES)
        self.at = 0
        self.elements = 0

    def bad(self, what: str, hint: str | None = None) -> BadFile:
        return BadFile(
            f"{self.path}: {what}", hint=hint or "The file is damaged or not a model: fetch it again."
        )

    def need(self, size: int, what: str) -> None:
        if size > self.end - self.at:
            limit = (
                f"the header's limit of {MAX_HEADER_BYTES}"
                if self.end < self.size
                else f"{self.size} in the file"
            )
            raise self.bad(f"{what} needs {size} bytes at byte {self.at}, past {limit}")

    def take(self, size: int, what: str) -> memoryview:
        self.need(size, what)
        part = self.view[self.at : self.at + size]
        self.at += size
        return part

    def u32(self, what: str) -> int:
        return int(_U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack(self.take(8, what))[0])

    def count(self, what: str, most: int, least_bytes: int) -> int:
        """How many of something follow, each at least so many bytes long."""
        count = self.u64(what)
        if count > most:
            raise self.bad(f"{what} is {count}; at most {most} are read")
        self.need(count * least_bytes, f"{what} of {count}")
        return count

    def string(self, what: str, most: int = MAX_STRING_BYTES) -> str:
        length = self.u64(f"length of {what}")
        if length > most:
            raise self.bad(f"{what} is {length} bytes long; at most {most} are read")
        return self.text(length, what)

    def text(self, length: int, what: str) -> str:
        try:
            return str(self.take(length, what), "utf-8")
        except UnicodeDecodeError:
            raise self.bad(f"{what} at byte {self.at - length} is not UTF-8") from None

    def value(self, key: str, kind: int) -> Value:
        if kind == _STRING:
            return self.string(f"value of {key!r}")
        if kind == _ARRAY:
            return self.array(key)
        if kind not in _SCALARS:
            raise self.bad(f"value type {kind} of {key!r} is unknown")
        return self.numbers(key, kind, 1)[0]

    def array(self, key: str) -> list[Scalar]:
        kind = self.u32(f"element type of {key!r}")
        if kind == _ARRAY or (kind != _STRING and kind not in _SCALARS):
            why = "nested arrays are not read" if kind == _ARRAY else "it is unknown"
            raise self.bad(f"element type {kind} of {key!r}: {why}")
        least = 8 if kind == _STRING else _SIZES[kind]
        count = self.count(f"length of {key!r}", MAX_ELEMENTS - self.elements, least)
        self.elements += count
        return self.strings(key, count) if kind == _STRING else self.numbers(key, kind, count)

    def numbers(self, key: str, kind: int, count: int) -> list[Scalar]:
        raw = self.take(count * _SIZES[kind], f"value of {key!r}")
        found = struct.unpack(f"<{count}{_SCALARS[kind]}", raw)
        if kind != _BOOL:
            return list(found)
        if count and max(found) > 1:
            raise self.bad(f"{key!r}: a truth value of {max(found)}")
        return [bool(one) for one in found]

    def strings(self, key: str, count: int) -> list[Scalar]:
        """The vocabulary comes through here: no call per string, so that 50,000 tokens take some milliseconds."""
        view, at, end, read = self.view, self.at, self.end, _U64.unpack_from
        found: list[Scalar] = []
        for index in range(count):
            start = at + 8
            length = read(view, at)[0] if start <= end else MAX_STRING_BYTES + 1
            if length > MAX_STRING_BYTES or length > end - start:
                raise self.bad(f"string {index} of {key!r} at byte {at} runs past the end or its limit")
            at = start + length
            try:
                found.append(str(view[start:at], "utf-8"))
            except UnicodeDecodeError:
                raise self.bad(f"string {index} of {key!r} at byte {start} is not UTF-8") from None
        self.at = at
        return found

    def tensor(self) -> TensorInfo:
        """One tensor's header; its offset still counts from the start of the data section."""
        name = self.string("a tensor's name", MAX_NAME_BYTES)
        dimensions = self.u32(f"dimensions of {name!r}")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self.bad(f"tensor {name!r} has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are read")
        sizes = [self.u64(f"a size of {name!r}") for _ in range(dimensions)]
        code = self.u32(f"type of {name!r}")
        if code not in _BY_CODE:
            raise self.bad(
                f"tensor {name!r} has the unknown type {code}", hint="Take another quantisation of the model."
            )
        kind = _BY_CODE[code]
        elements = 1
        for size in sizes:
            elements *= size
            if (
                not 0 < elements <= self.size * kind.block_elements
            ):  # no type packs more into a byte than one block
                raise self.bad(f"tensor {name!r} of sizes {sizes} does not fit a file of {self.size} bytes")
        if sizes[0] % kind.block_elements:
            raise self.bad(
                f"tensor {name!r}: rows of {sizes[0]} are not whole blocks of {kind.block_elements}"
            )
        nbytes = elements // kind.block_elements * kind.block_bytes
        return TensorInfo(name, tuple(reversed(sizes)), kind, self.u64(f"offset of {name!r}"), nbytes)
