"""Does the doctor see a damaged model, a full disk, and what should be closed to others and is not?"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from homebox.cli.doctor import disk
from homebox.cli.doctor.command import CHECKS, run
from homebox.cli.doctor.seen import Finding
from homebox.daemon.keys import Keys
from homebox.errors import BadFile, HomeboxError
from homebox.library.manifest import Manifest, WeightFile
from homebox.library.store import Library

from .conftest import MadeUp

MODEL = "smollm2-135m"


@pytest.fixture
def weights(it: MadeUp) -> Path:
    folder = it.state / "models" / MODEL
    folder.mkdir(parents=True)
    content = b"weights" * 100
    manifest = Manifest(
        name=MODEL,
        source="test",
        format="gguf",
        architecture="llama",
        quantisation="F32",
        context=128,
        vocab_size=8,
        parameters=1,
        files=[WeightFile("model.gguf", len(content), hashlib.sha256(content).hexdigest())],
    )
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    (folder / "model.gguf").write_bytes(content)
    return folder / "model.gguf"


def test_a_whole_model_is_well(it: MadeUp, weights: Path) -> None:
    assert it.find(disk.model).ok and "sizes compared" in it.find(disk.model).found
    it.full = True
    assert it.find(disk.model).ok and "every byte read" in it.find(disk.model).found


def test_a_model_of_the_wrong_size_is_found_and_a_changed_byte_with_full(it: MadeUp, weights: Path) -> None:
    weights.write_bytes(b"x" + weights.read_bytes()[1:])
    assert it.find(disk.model).ok
    it.full = True
    with pytest.raises(BadFile, match="checksum") as caught:
        it.find(disk.model)
    assert f"homebox models rm {MODEL}" in str(caught.value.hint)
    it.full = False
    for change in (lambda: weights.write_bytes(b"short"), weights.unlink):
        change()
        with pytest.raises(BadFile, match=r"model\.gguf"):
            it.find(disk.model)


def test_an_empty_library_says_how_to_fill_it(it: MadeUp) -> None:
    found = it.find(disk.model)
    assert not found.ok and found.fix == f"homebox models pull {MODEL}"


def test_too_little_room_is_found(it: MadeUp, monkeypatch: pytest.MonkeyPatch) -> None:
    assert it.find(disk.disk).ok
    monkeypatch.setattr(disk, "MIN_DISK_BYTES", 2**60)
    found = it.find(disk.disk)
    assert not found.ok and "Make room" in found.fix


def test_a_state_directory_that_cannot_be_written_is_found_unless_it_is_the_services(it: MadeUp) -> None:
    it.state.write_text("a file")
    with pytest.raises(HomeboxError, match="cannot be written"):
        it.find(disk.disk)
    it.health = {"state": "ready"}
    assert it.find(disk.disk).ok


def test_a_state_directory_is_described_with_its_chats(it: MadeUp) -> None:
    assert "is made when the daemon starts" in it.find(disk.state).found
    it.state.mkdir(mode=0o750)
    assert it.find(disk.state).found.endswith("no chats yet")
    (it.state / "chats").mkdir(mode=0o700)
    (it.state / "chats" / "anna.db").write_bytes(b"x" * 2**20)
    found = it.find(disk.state)
    assert found.ok and found.found.endswith("chats: 1.0 MiB in 1 file")


@pytest.mark.parametrize(
    ("name", "mode"), [("keys.json", 0o644), ("audit.jsonl", 0o640), ("keys.json", 0o602)]
)
def test_a_private_file_that_is_open_is_found(it: MadeUp, name: str, mode: int) -> None:
    it.state.mkdir(mode=0o750)
    (it.state / name).write_text("{}")
    (it.state / name).chmod(mode)
    found = it.find(disk.state)
    assert not found.ok and name in found.found and found.fix == f"chmod go= {it.state / name}"
    (it.state / name).chmod(0o600)
    assert it.find(disk.state).ok


def test_a_state_directory_that_others_may_write_is_found(it: MadeUp) -> None:
    it.state.mkdir()
    it.state.chmod(0o777)
    found = it.find(disk.state)
    assert not found.ok and found.fix == f"chmod go-w {it.state}"


def test_an_account_that_may_not_look_is_told_so_and_blamed_for_nothing(it: MadeUp, weights: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    it.state.chmod(0o700)
    it.health = {"state": "ready", "model": MODEL}
    Library(it.state).models(), Keys(it.state).all()  # what is imported late must not be, as nobody
    it.settings["listen"] = "127.0.0.1:1"
    found = as_nobody(
        lambda: {name: run(name, CHECKS[name], it.seen) for name in ("model", "disk", "state", "lan")}
    )
    assert all(finding.ok for finding in found.values()), found
    assert "closed to this account" in found["model"].found and "cannot be counted" in found["lan"].found
    it.health = None
    found = as_nobody(lambda: {name: run(name, CHECKS[name], it.seen) for name in ("model", "disk")})
    assert not any(finding.ok for finding in found.values())
    assert all(finding.fix for finding in found.values())


def as_nobody(look: Callable[[], dict[str, Finding]]) -> dict[str, Finding]:
    """What is found by a child with the uid of nobody."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.write(writer, msgspec.json.encode(look()))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as said:
        found = msgspec.json.decode(said.read(), type=dict[str, Finding])
    os.waitpid(child, 0)
    return found


def test_the_services_own_directory_is_the_one_that_is_meant(it: MadeUp) -> None:
    it.is_(environ={"PATH": str(it.bin)})
    it.systemd({}, {})
    assert it.seen.state == it.root / "var/lib/homebox"
    it.settings["state_dir"] = "/srv/homebox"
    assert it.seen.state == Path("/srv/homebox")
