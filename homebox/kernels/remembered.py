"""What has been found out about this machine before?

A small file beside the compiled kernels, in the directory that only this account can write. It is taken if it is ours and
whole, and otherwise as if it were not there: everything in it can be measured again.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import msgspec

from homebox.errors import KernelsMissing
from homebox.kernels.cpu.cache import Cache, ours

VERSION = 1
KEPT = 32
_MOST_BYTES = 1 << 20


class Finding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`about`: all that it depends on. `taken`: whether what was tried is used; `why` not, for people."""

    about: dict[str, str]
    taken: bool
    why: str = ""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    findings: list[Finding]


class Remembered:
    def __init__(self, folder: Path, name: str) -> None:
        """Raises KernelsMissing where nothing can be kept in `folder`."""
        self.path = folder / name
        Cache(folder).open()
        if not os.access(folder, os.W_OK):
            raise KernelsMissing(
                f"nothing can be written to {folder}",
                hint="set XDG_CACHE_HOME to a directory that this account can write, and restart homebox",
            )

    def find(self, about: dict[str, str]) -> Finding | None:
        return next((found for found in self._read() if found.about == about), None)

    def put(self, finding: Finding) -> None:
        """In the place of an older one. Raises OSError."""
        self._write([finding, *self._others(finding.about)][:KEPT])

    def forget(self, about: dict[str, str]) -> None:
        """Raises OSError."""
        self._write(self._others(about))

    def _others(self, about: dict[str, str]) -> list[Finding]:
        return [found for found in self._read() if found.about != about]

    def _read(self) -> list[Finding]:
        try:
            with open(
                self.path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)
            ) as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode) or not ours(found):
                    return []
                content = msgspec.json.decode(file.read(_MOST_BYTES), type=_File)
        except (OSError, msgspec.MsgspecError):
            return []
        return content.findings if content.version == VERSION else []

    def _write(self, findings: list[Finding]) -> None:
        """Whole, or not at all."""
        content = msgspec.json.format(msgspec.json.encode(_File(VERSION, findings)), indent=1)
        with tempfile.NamedTemporaryFile(dir=self.path.parent, delete=False) as file:
            made = Path(file.name)
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                made.replace(self.path)
            except BaseException:
                made.unlink(missing_ok=True)
                raise
