"""The safetensors reader against the safetensors package, and against headers that lie."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from homebox.errors import BadFile
from homebox.formats.safetensors import INDEX, open_folder, open_safetensors

DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("safetensors") / "model.safetensors"
    tensors = {f"t.{name}": (torch.randn(3, 5) * 9).to(dtype) for name, dtype in DTYPES.items()}
    tensors |= {"scalar": torch.tensor(2.5), "none": torch.zeros(0, 4), "ünïcode": torch.ones(2, 1, 3)}
    save_file(tensors, path, metadata={"format": "pt"})
    return path


def raw_file(header: object, data: int) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data)


def entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_names_types_shapes_and_bytes_are_those_the_reference_package_reads(written: Path) -> None:
    with safe_open(written, "pt") as theirs, open_safetensors(written) as ours:
        assert set(ours.tensors) == set(theirs.keys())
        assert ours.metadata == theirs.metadata()
        for name in theirs.keys():  # noqa: SIM118 - the reference's object is no mapping
            info = ours.tensors[name]
            tensor = theirs.get_tensor(name)
            assert info.dtype == theirs.get_slice(name).get_dtype()
            assert info.shape == tuple(tensor.shape)
            assert bytes(ours.data(name)) == bytes(tensor.reshape(-1).view(torch.uint8).numpy()), name


HOSTILE = {
    "an empty file": (b"", "empty"),
    "seven bytes": (bytes(7), "7 bytes"),
    "a header of 2^62 bytes": ((2**62).to_bytes(8, "little") + b"{}", "a header of"),
    "a header beyond the end": ((99).to_bytes(8, "little") + b"{}", "a header of 99"),
    "no JSON": (raw_file(b"{not json", 0), "header"),
    "a list": (raw_file([], 0), "header"),
    "deep nesting": (raw_file(b'{"a":' * 100_000, 0), "header"),
    "a negative offset": (raw_file({"a": entry(-4, 0, [1])}, 4), "lies at bytes -4"),
    "an extent beyond the end": (raw_file({"a": entry(0, 8, [2])}, 4), "lies at bytes 0 to 8"),
    "an end before the begin": (raw_file({"a": entry(4, 0, [1])}, 4), "lies at bytes 4 to 0"),
    "a shape that needs more": (raw_file({"a": entry(0, 4, [2])}, 4), "8 belong"),
    "a negative shape": (raw_file({"a": entry(0, 4, [-1])}, 4), "belong"),
    "a shape of 10^30": (raw_file({"a": entry(0, 4, [10**30])}, 4), "belong|header"),
    "nine dimensions": (raw_file({"a": entry(0, 4, [1] * 9)}, 4), "9 dimensions"),
    "an unknown type": (raw_file({"a": entry(0, 4, [1], "F33")}, 4), "F33"),
    "an unknown field": (raw_file({"a": entry(0, 4, [1]) | {"x": 1}}, 4), "header"),
    "an overlap": (raw_file({"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, 12), "starts at byte"),
    "a hole": (raw_file({"a": entry(0, 4, [1]), "b": entry(8, 12, [1])}, 12), "starts at byte"),
    "a name twice": (
        raw_file(
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', 8
        ),
        "starts at byte",
    ),
    "bytes after the last": (raw_file({"a": entry(0, 4, [1])}, 8), "the file at"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_header_that_lies_is_refused_with_the_path(name: str, tmp_path: Path) -> None:
    raw, words = HOSTILE[name]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(raw)
    with pytest.raises(BadFile, match=words) as caught:
        open_safetensors(path)
    assert str(path) in caught.value.message


def test_mutated_headers_end_in_a_clean_error_or_a_clean_read(written: Path, tmp_path: Path) -> None:
    good = written.read_bytes()
    length = 8 + int.from_bytes(good[:8], "little")
    rng = random.Random(3)
    path = tmp_path / "mutant.safetensors"
    refused = 0
    for _ in range(3_000):
        raw = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            raw[rng.randrange(length)] = rng.choice(b'0123456789{}[]",:' + bytes([rng.randrange(256)]))
        if rng.random() < 0.2:
            del raw[rng.randrange(len(raw)) :]
        with path.open("r+b" if path.exists() else "wb") as file:  # emptying it first would wait for the disk
            file.write(raw)
            file.truncate()
        try:
            with open_safetensors(path) as file:
                assert all(len(file.data(name)) == info.nbytes for name, info in file.tensors.items())
        except BadFile:
            refused += 1
    assert 1_000 < refused < 3_000


def shards(folder: Path) -> None:
    save_file({"a": torch.ones(2), "b": torch.zeros(3)}, folder / "model-00001-of-00002.safetensors")
    save_file({"c": torch.full((1,), 7.0)}, folder / "model-00002-of-00002.safetensors")


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 24}, "weight_map": weight_map}))


def test_a_folder_of_shards_reads_as_one_with_and_without_its_index(tmp_path: Path) -> None:
    shards(tmp_path)
    with open_folder(tmp_path) as folder:
        assert set(folder.tensors) == {"a", "b", "c"}
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    write_index(tmp_path, {"a": first, "b": first, "c": second})
    with open_folder(tmp_path) as folder:
        assert bytes(folder.data("c")) == torch.tensor([7.0]).numpy().tobytes()
        assert [path.name for path in folder.files] == [first, second]


def test_a_folder_whose_index_and_shards_disagree_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="no safetensors"):
        open_folder(tmp_path)
    shards(tmp_path)
    second = "model-00002-of-00002.safetensors"
    write_index(tmp_path, {"a": second, "c": second})
    with pytest.raises(BadFile, match="'a' is said to be in model-00002"):
        open_folder(tmp_path)
    write_index(tmp_path, {"a": "model-00003-of-00002.safetensors"})
    with pytest.raises(BadFile, match="No such file"):
        open_folder(tmp_path)
    for outside in ("../model.safetensors", "/etc/passwd", "sub/x.safetensors", "pickle.bin"):
        write_index(tmp_path, {"a": outside})
        with pytest.raises(BadFile, match="same folder"):
            open_folder(tmp_path)
    (tmp_path / INDEX).unlink()
    save_file({"c": torch.ones(1)}, tmp_path / "model-00003-of-00003.safetensors")
    with pytest.raises(BadFile, match="'c' is in"):
        open_folder(tmp_path)
