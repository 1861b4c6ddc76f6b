"""The GGUF reader against the `gguf` package, and against ten thousand files that lie."""

from __future__ import annotations

import random
import resource
import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from homebox.errors import BadFile
from homebox.formats.gguf import SUPPORTED, TensorType, open_gguf

MAGIC = b"GGUF"


def header(
    *,
    version: int = 3,
    tensors: list[bytes] | None = None,
    keys: list[bytes] | None = None,
    tail: bytes = b"",
) -> bytes:
    tensors, keys = tensors or [], keys or []
    return (
        MAGIC
        + struct.pack("<IQQ", version, len(tensors), len(keys))
        + b"".join(keys)
        + b"".join(tensors)
        + tail
    )


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, sizes: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def rewrite(path: Path, raw: bytes | bytearray) -> None:
    """Without emptying the file first, after which many file systems would wait for the disk."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(raw)
        file.truncate()


def padded(raw: bytes, data: int, alignment: int = 32) -> bytes:
    return raw + bytes(-len(raw) % alignment) + bytes(data)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file from the reference writer: every accepted type and every kind of value."""
    path = tmp_path_factory.mktemp("gguf") / "all.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -3)
    writer.add_uint16("a.u16", 60000)
    writer.add_int16("a.i16", -30000)
    writer.add_uint32("a.u32", 4_000_000_000)
    writer.add_int32("a.i32", -5)
    writer.add_uint64("a.u64", 2**63 + 1)
    writer.add_int64("a.i64", -(2**62))
    writer.add_float32("a.f32", 0.1)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.yes", True)
    writer.add_bool("a.no", False)
    writer.add_string("a.text", "héllo 世界 👪")
    writer.add_array("a.words", ["", "a", "Ġthe", "\n", "👪"])
    writer.add_array("a.numbers", [1, -2, 3])
    writer.add_array("a.floats", [0.5, 1.25])
    writer.add_array("a.truths", [True, False])
    rng = np.random.default_rng(1)
    values = rng.standard_normal((6, 64), dtype=np.float32)
    for kind in SUPPORTED:
        code = gguf.GGMLQuantizationType(int(kind))
        writer.add_tensor(f"t.{kind.name}", gguf.quantize(values, code), raw_dtype=code)
    writer.add_tensor("t.vector", np.arange(5, dtype=np.float32))
    writer.add_tensor("t.three", rng.standard_normal((2, 3, 4)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def assert_same(path: Path) -> None:
    oracle = gguf.GGUFReader(path)
    with open_gguf(path) as ours:
        theirs = {k: f.contents() for k, f in oracle.fields.items() if not k.startswith("GGUF.")}
        assert ours.metadata == theirs
        assert [type(v) for v in ours.metadata.values()] == [type(v) for v in theirs.values()]
        assert set(ours.tensors) == {t.name for t in oracle.tensors}
        for t in oracle.tensors:
            info = ours.tensors[t.name]
            assert info.shape == tuple(int(n) for n in reversed(t.shape))
            assert info.type == int(t.tensor_type)
            assert (info.offset, info.nbytes) == (t.data_offset, t.n_bytes)
            assert bytes(ours.data(t.name)) == t.data.tobytes()


def test_every_value_and_accepted_type_reads_as_the_reference_package_reads_it(written: Path) -> None:
    assert_same(written)


@pytest.mark.model
def test_the_real_model_reads_as_the_reference_package_reads_it_and_opens_in_half_a_second(
    default_model: Path,
) -> None:
    (path,) = default_model.glob("*.gguf")
    assert_same(path)
    began = time.process_time()
    with open_gguf(path) as file:
        assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
    assert time.process_time() - began < 0.5


def test_block_sizes_are_those_of_the_reference_package() -> None:
    known = {int(k): size for k, size in gguf.GGML_QUANT_SIZES.items()}
    assert {int(t): (t.block_elements, t.block_bytes) for t in TensorType} == known


def test_a_custom_alignment_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "aligned.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(256)
    writer.add_tensor("a", np.arange(3, dtype=np.float32))
    writer.add_tensor("b", np.arange(7, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert_same(path)


def test_version_2_is_read_and_other_versions_are_named(written: Path, tmp_path: Path) -> None:
    raw = bytearray(written.read_bytes())
    path = tmp_path / "other.gguf"
    raw[4:8] = struct.pack("<I", 2)
    path.write_bytes(raw)
    with open_gguf(path) as file:
        assert file.version == 2
    for version, words in ((1, "version 1"), (4, "version 4"), (3 << 24, "big-endian")):
        raw[4:8] = struct.pack("<I", version)
        path.write_bytes(raw)
        with pytest.raises(BadFile, match=words):
            open_gguf(path)


def test_a_known_type_that_nothing_computes_with_opens_but_gives_no_data(tmp_path: Path) -> None:
    path = tmp_path / "k.gguf"
    path.write_bytes(padded(header(tensors=[tensor("w", [256, 2], kind=12)]), 2 * 144))
    with open_gguf(path) as file:
        assert file.tensors["w"].type is TensorType.Q4_K
        assert file.tensors["w"].nbytes == 288
        with pytest.raises(BadFile, match="Q4_K") as caught:
            file.data("w")
        assert caught.value.hint is not None
        assert "Q4_1" in caught.value.hint


def test_views_outlive_the_file_that_gave_them(written: Path) -> None:
    with open_gguf(written) as file:
        view = file.data("t.vector")
    assert struct.unpack("<5f", view) == (0, 1, 2, 3, 4)
    assert view.readonly


HOSTILE = {
    "an empty file": (b"", "empty"),
    "another format": (b"PK\x03\x04" + bytes(40), "not a GGUF"),
    "a cut header": (MAGIC + struct.pack("<IQ", 3, 0), "key count"),
    "2^63 tensors": (MAGIC + struct.pack("<IQQ", 3, 2**63, 0), "tensor count is"),
    "2^63 keys": (MAGIC + struct.pack("<IQQ", 3, 0, 2**63), "key count is"),
    "more keys than bytes": (MAGIC + struct.pack("<IQQ", 3, 0, 60_000), "key count"),
    "a key of 2^60 bytes": (header(keys=[struct.pack("<Q", 2**60) + bytes(30)]), "bytes long"),
    "an empty key": (header(keys=[key("", 0, bytes(30))]), "empty key"),
    "a text beyond the end": (header(keys=[key("k", 8, struct.pack("<Q", 1000))]), "past"),
    "a text that is not UTF-8": (header(keys=[key("k", 8, struct.pack("<Q", 2) + b"\xff\xfe")]), "UTF-8"),
    "a key twice": (header(keys=[key("k", 0, b"\1"), key("k", 0, b"\1")], tail=bytes(9)), "twice"),
    "an unknown value type": (header(keys=[key("k", 13, bytes(20))]), "type 13"),
    "a truth value of 7": (header(keys=[key("k", 7, b"\7")]), "truth value of 7"),
    "an array in an array": (header(keys=[key("k", 9, struct.pack("<IQ", 9, 1) + bytes(20))]), "nested"),
    "an array of 2^62": (
        header(keys=[key("k", 9, struct.pack("<IQ", 10, 2**62) + bytes(20))]),
        "length of 'k'",
    ),
    "an array beyond the end": (header(keys=[key("k", 9, struct.pack("<IQ", 5, 90))]), "needs 360"),
    "texts beyond the end": (
        header(keys=[key("k", 9, struct.pack("<IQ", 8, 2) + struct.pack("<QQ", 0, 2**50))]),
        "string 1",
    ),
    "a cut text array": (header(keys=[key("k", 9, struct.pack("<IQ", 8, 2) + text("12345678"))]), "string 1"),
    "alignment 0": (header(keys=[key("general.alignment", 4, struct.pack("<I", 0))]), "alignment 0"),
    "alignment 48": (header(keys=[key("general.alignment", 4, struct.pack("<I", 48))]), "alignment 48"),
    "alignment 2^31": (header(keys=[key("general.alignment", 4, struct.pack("<I", 2**31))]), "alignment"),
    "alignment of text": (header(keys=[key("general.alignment", 8, text("32"))]), "alignment '32'"),
    "no dimensions": (header(tensors=[tensor("t", []) + bytes(20)]), "0 dimensions"),
    "2^32-1 dimensions": (header(tensors=[text("t") + b"\xff" * 40]), "dimensions"),
    "a dimension of 0": (padded(header(tensors=[tensor("t", [0, 4])]), 64), "does not fit"),
    "a product that wraps 2^64": (padded(header(tensors=[tensor("t", [2**33, 2**31])]), 64), "does not fit"),
    "an unknown tensor type": (padded(header(tensors=[tensor("t", [4], kind=99)]), 64), "type 99"),
    "rows of half a block": (padded(header(tensors=[tensor("t", [48], kind=3)]), 64), "whole blocks"),
    "an offset off the grid": (padded(header(tensors=[tensor("t", [4], offset=8)]), 64), "not aligned"),
    "an offset of 2^63": (padded(header(tensors=[tensor("t", [4], offset=2**63)]), 64), "ends at byte"),
    "data that was cut": (padded(header(tensors=[tensor("t", [16])]), 63), "cut short"),
    "a tensor twice": (padded(header(tensors=[tensor("t", [4]), tensor("t", [4], offset=32)]), 64), "twice"),
    "two in one place": (
        padded(header(tensors=[tensor("t", [16]), tensor("u", [4], offset=32)]), 64),
        "overlap",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_header_that_lies_is_refused_with_the_path_and_the_reason(name: str, tmp_path: Path) -> None:
    raw, words = HOSTILE[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(raw)
    with pytest.raises(BadFile, match=words) as caught:
        open_gguf(path)
    assert str(path) in caught.value.message
    assert caught.value.hint


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(BadFile, match=str(path)):
            open_gguf(path)


def test_ten_thousand_mutated_headers_end_in_a_clean_error_or_a_clean_read(
    written: Path, tmp_path: Path
) -> None:
    good = written.read_bytes()
    with open_gguf(written) as file:
        end_of_header = min(info.offset for info in file.tensors.values())
    rng = random.Random(7)
    path = tmp_path / "mutant.gguf"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    refused = 0
    for _ in range(10_000):
        raw = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(end_of_header)
            kind = rng.randrange(4)
            if kind == 0:
                raw[at] = rng.randrange(256)
            elif kind == 1:
                raw[at : at + 8] = struct.pack(
                    "<Q", rng.choice([0, 2**31, 2**32 - 1, 2**62, 2**64 - 1, 10**6])
                )
            elif kind == 2:
                raw[at : at + rng.randrange(16)] = b""
            else:
                del raw[at + rng.randrange(len(raw) - at) :]
            if len(raw) < end_of_header:
                break
        rewrite(path, raw)
        try:
            with open_gguf(path) as file:
                for info in file.tensors.values():
                    assert info.offset + info.nbytes <= len(raw)
                    if info.type in SUPPORTED:
                        assert len(file.data(info.name)) == info.nbytes
        except BadFile:
            refused += 1
    assert 5_000 < refused < 10_000
    assert time.process_time() - began < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB
