"""Which models are installed here, and where?

The library is `<state>/models/<name>/`; the daemon asks it for a directory, the CLI lists, checks and removes. A name is
never used as a path before it has passed the grammar, and nothing in the library is reached through a symbolic link.
It installs nothing: `pull.py` and `adopt.py` do, in a locked staging directory that `staging` gives them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from homebox.config import check_state_dir
from homebox.errors import BadFile, HomeboxError, ModelNotFound, NoSpace, NotAllowed, UsageError
from homebox.library import manifest as manifests
from homebox.library.catalogue import how_to_get
from homebox.library.files import Progress, fingerprint, hand_over, silent, sync
from homebox.library.manifest import Manifest

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def valid_name(name: str) -> bool:
    """Whether a model may be called so."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """The name itself, if a model may be called so. Raises UsageError."""
    if not valid_name(name):
        raise UsageError(
            f"{name!r} cannot be a model's name",
            hint="Use up to 64 lower-case letters, digits, dots, dashes and underscores, like llama-3.2-1b.",
        )
    return name


class Library:
    """The models under one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self.root = state_dir / "models"

    def models(self) -> list[Manifest]:
        """All models that can be used, by name."""
        return [found for found in self._survey().values() if isinstance(found, Manifest)]

    def damaged(self) -> dict[str, HomeboxError]:
        """The directories that should be models and cannot be used, each with the reason."""
        return {name: found for name, found in self._survey().items() if isinstance(found, HomeboxError)}

    def path(self, name: str) -> Path:
        """A model's directory. Raises ModelNotFound, or BadFile where something in it is not a plain file."""
        if not valid_name(name):
            raise _absent(name)
        folder = self.root / name
        try:
            status = folder.lstat()
        except FileNotFoundError:
            raise _absent(name) from None
        except OSError as error:
            raise _unreadable(folder, error) from None
        if not stat.S_ISDIR(status.st_mode):
            raise BadFile(
                f"{folder} is not a directory", hint="The library follows no links. Use models adopt instead."
            )
        try:
            odd = [entry.name for entry in os.scandir(folder) if not entry.is_file(follow_symlinks=False)]
        except OSError as error:
            raise _unreadable(folder, error) from None
        if odd:
            raise BadFile(f"{folder / odd[0]} is not a plain file", hint="The library follows no links.")
        return folder

    def read(self, name: str) -> Manifest:
        """What is known of an installed model. Raises ModelNotFound or BadFile."""
        found = manifests.read(self.path(name))
        if found.name != name or any(PurePosixPath(file.name).name != file.name for file in found.files):
            raise BadFile(
                f"{self.root / name / 'manifest.json'} was not written for {name!r}", hint=_again(name)
            )
        return found

    def remove(self, name: str) -> int:
        """Take a model away at once and give the bytes it freed. Raises ModelNotFound.

        A daemon that has it loaded goes on with it until it is restarted.
        """
        folder = self.root / check_name(name)
        if not folder.is_dir():
            raise _absent(name)
        with self._lock(name, silent):
            if folder.is_symlink() or not folder.is_dir():
                raise _absent(name)
            freed = sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(folder))
            gone = self.root / f".removed-{name}-{os.getpid()}"
            folder.rename(gone)
            shutil.rmtree(gone)
            return freed

    def verify(self, name: str, progress: Progress = silent) -> Manifest:
        """Read every file again and compare it with the manifest. Raises BadFile for the first that differs."""
        found = self.read(name)
        for file in found.files:
            path = self.root / name / file.name
            try:
                now = fingerprint(path, progress)
            except OSError as error:
                raise BadFile(f"{path}: {error.strerror or error}", hint=_again(name)) from None
            if now.size != file.size:
                raise BadFile(f"{path} has {now.size} bytes; {file.size} were installed", hint=_again(name))
            if now.sha256 != file.sha256:
                raise BadFile(
                    f"{path} is damaged: its checksum is not the installed one's", hint=_again(name)
                )
        return found

    @contextmanager
    def staging(self, name: str, progress: Progress = silent) -> Iterator[Path]:
        """A directory beside the models in which one is put together, by one process at a time.

        What is in it stays when the work fails, so that a second try goes on from there. Whoever finishes calls
        `publish`. Raises UsageError for a name that cannot be, NoSpace or NotAllowed where the disk refuses.
        """
        with self._lock(check_name(name), progress):
            try:
                folder = self._staged(name)
                if folder.parent != self.root:
                    folder.parent.mkdir(mode=0o700, exist_ok=True)
                folder.mkdir(exist_ok=True)
                yield folder
            except OSError as error:
                raise _unreadable(folder, error) from None

    def publish(self, name: str, finished: Path) -> Path:
        """Make a finished directory the model `name`, all at once; the staging directory goes away."""
        target = self.root / check_name(name)
        sync(finished)
        hand_over(self.root.parent, self.root, finished, *finished.iterdir())
        folder = os.open(
            self.root, os.O_RDONLY | os.O_DIRECTORY | (os.O_NOFOLLOW if self._somebody_elses() else 0)
        )
        try:
            os.rename(finished, name, dst_dir_fd=folder)
            os.fsync(folder)
        finally:
            os.close(folder)
        staged = self._staged(name)
        shutil.rmtree(staged, ignore_errors=True)
        if staged.parent != self.root:
            with contextlib.suppress(OSError):  # somebody else is at work in it
                staged.parent.rmdir()
        return target

    def _staged(self, name: str) -> Path:
        """Where a model is put together: beside the others. Root, in a state directory of the service's account, works
        where that account cannot change under its hands what it writes, if there is such a place on the same disk."""
        state = self.root.parent
        above = state.parent.stat()
        safe = above.st_uid == 0 and not above.st_mode & 0o022 and above.st_dev == self.root.stat().st_dev
        if safe and self._somebody_elses():
            return state.parent / f".{state.name}-staging" / name
        return self.root / f".staging-{name}"

    def _somebody_elses(self) -> bool:
        """Whether we are root at work for the service's account, which may have put anything there."""
        return os.geteuid() == 0 and self.root.parent.stat().st_uid != 0

    def installed(self, name: str) -> Path | None:
        """The model's directory, None where there is nothing. Raises BadFile for something that is no usable model."""
        if not os.path.lexists(self.root / check_name(name)):
            return None
        try:
            self.read(name)
        except ModelNotFound:
            raise BadFile(f"{self.root / name} is there and is not a model", hint=_again(name)) from None
        return self.root / name

    def _survey(self) -> dict[str, Manifest | HomeboxError]:
        try:
            names = sorted(entry.name for entry in os.scandir(self.root) if valid_name(entry.name))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _unreadable(self.root, error) from None
        return {name: self._look(name) for name in names}

    def _look(self, name: str) -> Manifest | HomeboxError:
        try:
            return self.read(name)
        except HomeboxError as error:
            return error

    @contextmanager
    def _lock(self, name: str, progress: Progress) -> Iterator[None]:
        check_state_dir(self.root.parent)
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if self.root.is_symlink() and self._somebody_elses():
                raise BadFile(
                    f"{self.root} is a link", hint="The library follows no links. Set state_dir instead."
                )
            handle = os.open(
                self.root / f".lock-{check_name(name)}",
                os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
                0o600,
            )
        except OSError as error:
            raise _unreadable(self.root, error) from None
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress(f"waiting: {name} is being installed or removed already", 0, 0)
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _absent(name: str) -> ModelNotFound:
    return ModelNotFound(f"no model {name!r} in the library", hint=how_to_get(name))


def _again(name: str) -> str:
    return f"homebox models rm {name}, then install it again."


def _unreadable(path: Path, error: OSError) -> HomeboxError:
    if error.errno == errno.ENOSPC:
        return NoSpace(
            f"{path}: the disk is full", hint="Free some space (homebox models rm NAME), then try again."
        )
    if isinstance(error, PermissionError):
        return NotAllowed(f"{path}: {error.strerror}", hint="Ask the box's owner, or set HOMEBOX_STATE_DIR.")
    return UsageError(
        f"{path}: {error.strerror or error}", hint="Set HOMEBOX_STATE_DIR to a directory of your own."
    )
