"""What does a backup file look like, and is this one whole and harmless?

A gzipped tar of plain files with short names, and as its last member `manifest.json`: what made it, when, each file's
size and SHA-256, and which models there were. It is read as a stream and as if an enemy had made it: another kind of
member, a name that is not in the table, an extension header, a size beyond the limit end the reading before anything
is kept. It writes to no disk.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

import msgspec

import homebox
from homebox.backup.contents import MANIFEST, item_of
from homebox.errors import BadFile, HomeboxError, NoSpace
from homebox.library.files import CHUNK_BYTES, Progress, silent
from homebox.library.manifest import Manifest as Model

SCHEMA = 1
_MAX_MANIFEST_BYTES = 16 * 2**20
_MAX_PADDING_BYTES = 2**20  # a tar is filled up with zeros to some multiple
_COMPRESSION = 6


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file: its name in the archive, its size in bytes, its SHA-256 in hex."""

    name: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`created` in unix seconds. `damaged` names databases that were damaged already when they were saved."""

    schema: int = SCHEMA
    homebox: str = homebox.__version__
    created: float
    host: str = ""
    files: list[Entry] = []
    damaged: list[str] = []
    models: list[Model] = []


class Writer:
    """Adds files to an archive; `finish` writes the manifest and the end."""

    def __init__(self, target: IO[bytes]) -> None:
        self._gzip = gzip.GzipFile(fileobj=target, mode="wb", compresslevel=_COMPRESSION, filename="")
        self._tar = tarfile.open(fileobj=self._gzip, mode="w", format=tarfile.GNU_FORMAT)  # noqa: SIM115
        self.files: list[Entry] = []

    def add(self, name: str, path: Path, progress: Progress = silent) -> None:
        """A file that nobody writes to meanwhile."""
        with path.open("rb") as file:
            header = self._header(name, path.stat().st_size)
            reader = _Hashing(file, f"saving {name}", header.size, progress)
            self._tar.addfile(header, reader)
        self.files.append(Entry(name, header.size, reader.digest.hexdigest()))

    def finish(self, manifest: Manifest) -> None:
        body = msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"
        self._tar.addfile(self._header(MANIFEST, len(body)), io.BytesIO(body))
        self._tar.close()
        self._gzip.close()

    @staticmethod
    def _header(name: str, size: int) -> tarfile.TarInfo:
        header = tarfile.TarInfo(name)
        header.size, header.mode, header.mtime = size, 0o600, int(time.time())
        return header


class _Hashing:
    """A file that is hashed as it is read."""

    def __init__(self, file: IO[bytes], stage: str, size: int, progress: Progress) -> None:
        self._file, self._stage, self._size, self._progress = file, stage, size, progress
        self._done = 0
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(size)
        self.digest.update(piece)
        self._done += len(piece)
        self._progress(self._stage, self._done, self._size)
        return piece


class _Plain(tarfile.TarInfo):
    """Refuses every other kind of member by its header, before what the header announces is read into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise BadFile(f"the archive holds something that is no plain file: {found.name[:80]!r}")
        if found.name != MANIFEST and item_of(found.name) is None:
            raise BadFile(f"the archive holds a file that belongs in no backup: {found.name[:80]!r}")
        return found


Take = Callable[[Entry, Iterator[bytes]], None]


def read(
    file: IO[bytes], *, most_bytes: int | None = None, take: Take | None = None, progress: Progress = silent
) -> Manifest:
    """Go through the whole archive and compare it with its manifest. `take` gets each file's entry (its checksum not
    yet known) and its pieces, and reads them to the end.

    Raises BadFile for anything that is not exactly a backup of ours, NoSpace for more than `most_bytes` in it."""
    file.seek(0)
    with _reading():
        found, manifest = _members(file, most_bytes, take, progress)
    if manifest is None:
        raise BadFile("the file ends before its manifest: it is not a whole backup")
    if manifest.schema != SCHEMA:
        raise BadFile(
            f"this backup was made by homebox {manifest.homebox[:40]} (form {manifest.schema}); "
            f"this is {homebox.__version__}, which reads form {SCHEMA}",
            hint="Restore it with the version that made it, or a newer one.",
        )
    _compare(found, manifest)
    return manifest


def _members(
    file: IO[bytes], most_bytes: int | None, take: Take | None, progress: Progress
) -> tuple[dict[str, Entry], Manifest | None]:
    found: dict[str, Entry] = {}
    manifest: Manifest | None = None
    total = 0
    with (
        gzip.GzipFile(fileobj=file, mode="rb") as unpacked,
        tarfile.open(fileobj=unpacked, mode="r|", tarinfo=_Plain) as tar,
    ):
        for member in tar:
            total += member.size
            if manifest is not None or member.name in found:
                raise BadFile(f"the archive holds {member.name!r} where nothing more may follow")
            if most_bytes is not None and total > most_bytes:
                raise NoSpace(
                    f"the archive holds more than the {most_bytes / 1e6:,.0f} MB for which there is room",
                    hint="Free some space, or restore to another disk.",
                    numbers={"room_bytes": most_bytes},
                )
            content = tar.extractfile(member)
            assert content is not None, "a plain file has content"
            if member.name == MANIFEST:
                manifest = _manifest(content.read(_MAX_MANIFEST_BYTES + 1))
                continue
            found[member.name] = _take(member, content, take, progress)
        if (
            len(unpacked.read(_MAX_PADDING_BYTES + 1)) > _MAX_PADDING_BYTES
        ):  # to the end, where gzip's own sum is
            raise BadFile("the archive goes on after its end")
    return found, manifest


def _take(member: tarfile.TarInfo, content: IO[bytes], take: Take | None, progress: Progress) -> Entry:
    digest, done = hashlib.sha256(), 0

    def pieces() -> Iterator[bytes]:
        nonlocal done
        while piece := content.read(CHUNK_BYTES):
            digest.update(piece)
            done += len(piece)
            progress(f"reading {member.name}", done, member.size)
            yield piece

    if take is None:
        for _ in pieces():
            pass
    else:
        take(Entry(member.name, member.size, ""), pieces())
    if done != member.size:
        raise EOFError
    return Entry(member.name, member.size, digest.hexdigest())


def _manifest(body: bytes) -> Manifest:
    try:
        if len(body) > _MAX_MANIFEST_BYTES:
            raise msgspec.ValidationError(f"larger than {_MAX_MANIFEST_BYTES >> 20} MiB")
        schema = msgspec.json.decode(body, type=dict[str, Any]).get("schema")
        if isinstance(schema, int) and schema > SCHEMA:  # what else a newer one says need not be understood
            return Manifest(schema=schema, homebox="of a newer version", created=0.0)
        return msgspec.json.decode(body, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFile(f"the backup's manifest cannot be read: {error}") from None


def _compare(found: dict[str, Entry], manifest: Manifest) -> None:
    listed = {entry.name: entry for entry in manifest.files}
    if missing := sorted(set(listed) ^ set(found)):
        raise BadFile(
            f"the backup and its manifest differ in {len(missing)} files, first {missing[0][:80]!r}"
        )
    for name, entry in found.items():
        if entry != listed[name]:
            raise BadFile(f"{name} is damaged in the backup: its checksum is not the saved one's")


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except HomeboxError:
        raise
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, OverflowError) as error:
        raise BadFile(f"this is no backup, or a damaged one: {error or 'it ends too early'}") from None
