"""Does an archive that an enemy made do anything but fail?"""

from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import msgspec
import pytest

from homebox.backup.archive import Entry, Manifest
from homebox.backup.restore import restore
from homebox.errors import BadFile, NoSpace

from .household import everything

Member = tuple[tarfile.TarInfo, bytes]


def plain(name: str, content: bytes = b"{}", kind: bytes = tarfile.REGTYPE, link: str = "") -> Member:
    header = tarfile.TarInfo(name)
    header.size, header.type, header.linkname = len(content), kind, link
    return header, content


def archive(path: Path, *members: Member, manifest: Manifest | bytes | None = None) -> Path:
    """A tar whose manifest tells the truth about it, unless another one is given."""
    if manifest is None:
        entries = [Entry(h.name, len(c), hashlib.sha256(c).hexdigest()) for h, c in members]
        manifest = Manifest(created=0.0, files=entries)
    body = manifest if isinstance(manifest, bytes) else msgspec.json.encode(manifest)
    with tarfile.open(path, "w:gz", format=tarfile.GNU_FORMAT) as tar:
        for header, content in (*members, plain("manifest.json", body)):
            tar.addfile(header, io.BytesIO(content))
    return path


HOSTILE: dict[str, tuple[Member, ...]] = {
    "absolute": (plain("/etc/passwd"),),
    "parent": (plain("state/../../etc/passwd"),),
    "parent in a name": (plain("state/chats/../keys.db"),),
    "unknown name": (plain("state/authorized_keys"),),
    "deeper": (plain("state/chats/a/b.db"),),
    "hidden": (plain("state/chats/.db"),),
    "control character": (plain("state/chats/a\x1b[2J.db"),),
    "models": (plain("state/models/x/manifest.json"),),
    "the lock": (plain("state/daemon.lock"),),
    "symbolic link": (plain("state/keys.json", b"", tarfile.SYMTYPE, "/etc/shadow"),),
    "hard link": (plain("state/keys.json", b"", tarfile.LNKTYPE, "state/people.json"),),
    "directory": (plain("state/chats/x.db", b"", tarfile.DIRTYPE),),
    "device": (plain("state/keys.json", b"", tarfile.CHRTYPE),),
    "pipe": (plain("state/keys.json", b"", tarfile.FIFOTYPE),),
    "sparse": (plain("state/keys.json", b"", tarfile.GNUTYPE_SPARSE),),
    "long name": (plain("state/chats/" + "x" * 200 + ".db"),),
    "twice": (plain("state/keys.json"), plain("state/keys.json")),
    "two manifests": (plain("manifest.json", b'{"created": 0}'),),
}


@pytest.mark.parametrize("members", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_belongs_in_no_backup_is_refused_and_nothing_is_written(
    tmp_path: Path, members: tuple[Member, ...]
) -> None:
    path = archive(tmp_path / "b.tar.gz", *members)
    with pytest.raises(BadFile):
        restore(path, tmp_path / "state", tmp_path / "etc", replace=True)
    assert everything(tmp_path).keys() == {"b.tar.gz"}


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"[]",
        b"{",
        b'{"created": "soon"}',
        b'{"created": 0, "files": [{"name": "state/people.json", "size": 2, "sha256": "00"}]}',
        b'{"created": 0, "files": []}',
        b'{"schema": 2, "anything": "else"}',
    ],
)
def test_a_manifest_that_is_not_the_archives_own_is_refused(tmp_path: Path, manifest: bytes) -> None:
    path = archive(tmp_path / "b.tar.gz", plain("state/keys.json"), manifest=manifest)
    with pytest.raises(BadFile):
        restore(path, tmp_path / "state", tmp_path / "etc", replace=True)
    assert not (tmp_path / "state").exists()


def test_a_newer_backup_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = archive(tmp_path / "b.tar.gz", plain("state/keys.json"), manifest=b'{"schema": 7}')
    with pytest.raises(BadFile, match=r"form 7.*reads form 1"):
        restore(path, tmp_path / "state", tmp_path / "etc")


@pytest.mark.parametrize("content", [b"", b"hello", b"\x1f\x8b\x08", gzip.compress(b"hello" * 1000, mtime=0)])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b.tar.gz").write_bytes(content)
    with pytest.raises(BadFile):
        restore(tmp_path / "b.tar.gz", tmp_path / "state", tmp_path / "etc")


@pytest.fixture(scope="module")
def zeros() -> bytes:
    """512 MiB, packed."""
    return gzip.compress(bytes(64 * 2**20), 1) * 8


def _announcing(name: str, kind: bytes, size: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.type, header.size = kind, size
    return header


@pytest.mark.parametrize(
    "header",
    [
        _announcing("state/chats/a.db", tarfile.REGTYPE, 2**50),
        _announcing("state/keys.json", tarfile.GNUTYPE_LONGNAME, 2**33),
        _announcing("state/keys.json", tarfile.XHDTYPE, 2**33),
        _announcing("state/keys.json", tarfile.XGLTYPE, 2**33),
        _announcing("manifest.json", tarfile.REGTYPE, 2**28),
    ],
    ids=["file", "long name", "pax", "global pax", "manifest"],
)
def test_a_bomb_takes_neither_memory_nor_disk(tmp_path: Path, header: tarfile.TarInfo, zeros: bytes) -> None:
    """A header that announces far more than there is memory, and zeros that go on and on."""
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(header.tobuf(tarfile.GNU_FORMAT)) + zeros)
    code = (
        "import resource, sys; from pathlib import Path; from homebox.backup.restore import restore\n"
        "from homebox.errors import HomeboxError\n"
        "resource.setrlimit(resource.RLIMIT_AS, (256 * 2**20,) * 2)\n"
        "try:\n    restore(Path(sys.argv[1]), Path(sys.argv[2]), Path('/nowhere'))\n"
        "except HomeboxError as error:\n    print(type(error).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "b.tar.gz"), str(tmp_path / "state")],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.stdout.strip() in (BadFile.__name__, NoSpace.__name__), done.stderr
    assert not (tmp_path / "state").exists()
