"""Does a backup bring back every message, and does a restore harm nothing?"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from homebox.backup.restore import restore, verify
from homebox.backup.save import save_to_file
from homebox.daemon import lock
from homebox.errors import BadFile, Busy, HomeboxError, NoSpace, NotAllowed, NotFound, UsageError
from tests import forks
from tests.forks import COMMAND, Fork

from .household import MESSAGES, PEOPLE, everything, make, messages, open_chats, plain, rows

NOBODY = 65534


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make(tmp_path / "state")


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    folder = tmp_path / "etc"
    (folder / "conf.d").mkdir(parents=True)
    (folder / "config.toml").write_text('model = "tiny"\n')
    (folder / "conf.d" / "10-lan.toml").write_text('listen = "127.0.0.1:11480"\n')
    return folder


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A directory that other accounts can get to, which pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="homebox-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def homebox(*args: str, **more: object) -> subprocess.CompletedProcess[bytes]:
    return forks.run([*COMMAND, *args], timeout=60, **more)


# ---- there and back


def test_backup_and_restore_give_back_every_message_and_file(state: Path, etc: Path, tmp_path: Path) -> None:
    saved = save_to_file(tmp_path / "b.tar.gz", state, etc)
    assert not saved.manifest.damaged and not saved.left_out
    assert stat.S_IMODE((tmp_path / "b.tar.gz").stat().st_mode) == 0o600
    done = restore(tmp_path / "b.tar.gz", tmp_path / "new", tmp_path / "new-etc")
    for person in PEOPLE:
        assert messages(tmp_path / "new", person) == rows(person, MESSAGES)
        with closing(open_chats(tmp_path / "new", person)) as chats:
            assert chats.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert chats.execute("SELECT count(*) FROM words WHERE words MATCH 'äpfel'").fetchone() == (
                MESSAGES,
            )
    assert plain(tmp_path / "new") == plain(state)
    with closing(sqlite3.connect(tmp_path / "new" / "usage.db")) as usage:
        assert usage.execute("SELECT sum(tokens) FROM usage").fetchone() == (1234 * len(PEOPLE),)
    assert everything(tmp_path / "new-etc") == everything(etc) and len(done.configuration) == 2
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").rglob("*") if path.is_file()}
    assert modes == {0o600}
    assert not [*state.glob(".*")] and not [*(tmp_path / "new").glob(".*")], "no staging is left"


def test_a_database_that_is_written_meanwhile_is_saved_as_one_moment(state: Path, tmp_path: Path) -> None:
    """Each transaction of the writer adds two rows that belong together; a backup never holds one of them alone."""
    stop, written = threading.Event(), threading.Event()

    def write() -> None:
        with closing(open_chats(state, "anna")) as chats:
            number = 0
            while not stop.is_set():
                with chats:
                    chats.execute("INSERT INTO messages (text) VALUES (?)", (f"pair {number}",))
                    chats.execute("INSERT INTO messages (text) VALUES (?)", (f"pair {number}",))
                number += 1
                written.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert written.wait(10)
        for number in range(3):
            save_to_file(tmp_path / f"{number}.tar.gz", state, tmp_path / "none")
    finally:
        stop.set()
        writer.join()
    sizes = []
    for number in range(3):
        restore(tmp_path / f"{number}.tar.gz", tmp_path / str(number), tmp_path / "none")
        pairs = [text for text, _ in messages(tmp_path / str(number), "anna") if text.startswith("pair")]
        assert pairs and pairs[::2] == pairs[1::2] == [f"pair {i}" for i in range(len(pairs) // 2)]
        sizes.append(len(pairs))
    assert sizes == sorted(sizes) and len(messages(state, "anna")) >= sizes[-1] + MESSAGES


def test_what_a_crash_left_in_the_log_of_a_database_is_saved_too(state: Path, tmp_path: Path) -> None:
    code = (
        "import sys, os; sys.path.insert(0, sys.argv[1]); from tests.backup.household import open_chats\n"
        "from pathlib import Path\nc = open_chats(Path(sys.argv[2]), 'ben')\n"
        "c.execute('PRAGMA wal_autocheckpoint = 0')\n"
        "c.execute(\"INSERT INTO messages (text) VALUES ('last words')\"); c.commit(); os._exit(9)"
    )
    forks.run([sys.executable, "-c", code, str(Path(__file__).parents[2]), str(state)])
    assert (state / "chats" / "ben.db-wal").stat().st_size
    save_to_file(tmp_path / "b.tar.gz", state, tmp_path / "none")
    restore(tmp_path / "b.tar.gz", tmp_path / "new", tmp_path / "none")
    assert messages(tmp_path / "new", "ben")[-1][0] == "last words"


def test_a_damaged_database_is_saved_as_it_is_and_said_and_the_others_are_whole(
    state: Path, tmp_path: Path
) -> None:
    path = state / "chats" / "ben.db"
    content = bytearray(path.read_bytes())
    content[4096:20480] = b"\xff" * 16384
    path.write_bytes(content)
    (state / "chats" / "mia.db").write_bytes(b"no database at all")
    ran = homebox("backup", str(tmp_path / "b.tar.gz"), "--state", str(state))
    assert ran.returncode == 2, ran.stderr
    assert b"state/chats/ben.db is damaged" in ran.stderr and b"state/chats/mia.db is damaged" in ran.stderr
    done = restore(tmp_path / "b.tar.gz", tmp_path / "new", tmp_path / "none")
    assert done.manifest.damaged == ["state/chats/ben.db", "state/chats/mia.db"]
    assert (tmp_path / "new" / "chats" / "ben.db").read_bytes() == content
    assert messages(tmp_path / "new", "anna") == rows("anna", MESSAGES)


def test_a_link_in_the_place_of_a_file_is_left_out_and_said(state: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("root's own")
    (state / "pause.json").unlink()
    (state / "pause.json").symlink_to(tmp_path / "secret")
    saved = save_to_file(tmp_path / "b.tar.gz", state, tmp_path / "none")
    assert len(saved.left_out) == 1 and "no plain file" in saved.left_out[0]
    assert "state/pause.json" not in {entry.name for entry in saved.manifest.files}


# ---- a backup never replaces or half writes anything


def test_a_backup_replaces_no_file_and_a_failed_one_leaves_none(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out" / "b.tar.gz"
    target.parent.mkdir()
    target.write_text("an older one")
    with pytest.raises(UsageError, match="is there already"):
        save_to_file(target, state, tmp_path / "none")
    assert target.read_text() == "an older one"
    target.unlink()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 1000))  # type: ignore[attr-defined]
    with pytest.raises(NoSpace, match="may need") as caught:
        save_to_file(target, state, tmp_path / "none")
    assert caught.value.numbers["free_bytes"] == 1000
    assert not [*target.parent.iterdir()]
    with pytest.raises(NotFound, match="no state directory"):
        save_to_file(target, tmp_path / "nowhere", tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="nothing to save"):
        save_to_file(target, tmp_path / "empty", tmp_path / "none")


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small disk")
def test_a_disk_that_fills_up_leaves_no_file_and_says_so(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", small], capture_output=True
    ).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        (state / "audit.jsonl").write_bytes(os.urandom(300_000))
        monkeypatch.setattr("homebox.backup.save.need_room", lambda *args: None)  # filled after it was asked
        with pytest.raises(NoSpace, match="No space left"):
            save_to_file(small / "b.tar.gz", state, tmp_path / "none")
        assert not [*small.iterdir()]
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_backup_to_a_pipe_can_be_restored(state: Path, tmp_path: Path) -> None:
    ran = homebox("backup", "-", "--state", str(state))
    assert ran.returncode == 0 and b"chats of 3 people" in ran.stderr
    (tmp_path / "b.tar.gz").write_bytes(ran.stdout)
    restore(tmp_path / "b.tar.gz", tmp_path / "new", tmp_path / "none")
    assert plain(tmp_path / "new") == plain(state)


def test_a_pipe_whose_reader_leaves_is_no_success_and_none_can_be_restored_from(
    state: Path, tmp_path: Path
) -> None:
    (state / "audit.jsonl").write_bytes(os.urandom(500_000))
    save = Fork(
        [*COMMAND, "backup", "-", "--state", str(state)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert save.stdout and save.stderr and save.stdout.read(10)
    save.stdout.close()
    assert b"left before its end" in save.stderr.read() and save.wait(20) == 1
    save.stderr.close()
    ran = homebox("restore", "/dev/stdin", "--state", str(tmp_path / "new"), input=b"anything")
    assert ran.returncode == 2 and b"cannot be read twice" in ran.stderr


# ---- a restore never overwrites anything


def test_a_restore_refuses_to_overwrite_and_with_replace_moves_everything_aside(
    state: Path, tmp_path: Path
) -> None:
    save_to_file(tmp_path / "b.tar.gz", state, tmp_path / "none")
    with closing(open_chats(state, "anna")) as chats, chats:
        chats.execute("INSERT INTO messages (text) VALUES ('said after the backup')")
    shutil.copy(state / "chats" / "anna.db", state / "chats" / "zoe.db")
    (state / "models").mkdir()
    before = everything(state)
    with pytest.raises(UsageError, match=r"chats/anna.db, chats/ben.db, .* and 4 more") as caught:
        restore(tmp_path / "b.tar.gz", state, tmp_path / "none")
    assert "--replace" in str(caught.value.hint) and everything(state) == before
    done = restore(tmp_path / "b.tar.gz", state, tmp_path / "none", replace=True)
    assert done.aside and everything(done.aside) == before
    assert messages(state, "anna") == rows("anna", MESSAGES)
    assert not (state / "chats" / "zoe.db").exists() and (state / "models").is_dir()
    again = restore(tmp_path / "b.tar.gz", state, tmp_path / "none", replace=True)
    assert again.aside and again.aside != done.aside


def test_a_restore_that_fails_half_way_puts_everything_back(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_to_file(tmp_path / "b.tar.gz", state, tmp_path / "none")
    before = everything(state)
    rename, calls = Path.rename, []

    def failing(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == 12:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(UsageError, match="Input/output error"):
        restore(tmp_path / "b.tar.gz", state, tmp_path / "none", replace=True)
    assert len(calls) > 12 and everything(state) == before


def test_a_configuration_that_is_there_stays_and_the_saved_one_is_put_beside_it(
    state: Path, etc: Path, tmp_path: Path
) -> None:
    save_to_file(tmp_path / "b.tar.gz", state, etc)
    (etc / "config.toml").write_text('model = "another"\n')
    (etc / "conf.d" / "10-lan.toml").unlink()
    done = restore(tmp_path / "b.tar.gz", tmp_path / "new", etc)
    assert sorted(path.name for path in done.configuration) == ["10-lan.toml", "config.toml.restored"]
    assert (etc / "config.toml").read_text() == 'model = "another"\n'
    assert (etc / "config.toml.restored").read_text() == 'model = "tiny"\n'


def test_models_are_named_and_the_missing_ones_said_with_the_next_step(
    state: Path, tmp_path: Path, default_model: Path
) -> None:
    (state / "models").symlink_to(default_model.parent)
    saved = save_to_file(tmp_path / "b.tar.gz", state, tmp_path / "none")
    assert default_model.name in [model.name for model in saved.manifest.models]
    ran = homebox("restore", str(tmp_path / "b.tar.gz"), "--state", str(tmp_path / "new"))
    assert ran.returncode == 0, ran.stderr
    assert f"homebox models pull {default_model.name}".encode() in ran.stderr


# ---- who may, and when


@contextmanager
def holding(state: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process has the state directory, as a daemon has."""
    code = "import sys; from pathlib import Path; from homebox.daemon import lock\n"
    code += "held = lock.hold(Path(sys.argv[1])); print('ready', flush=True); sys.stdin.read()"
    with Fork(
        [sys.executable, "-c", code, str(state)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_nothing_is_restored_under_a_daemon_and_no_two_daemons_share_a_state(
    state: Path, tmp_path: Path
) -> None:
    save_to_file(tmp_path / "b.tar.gz", state, tmp_path / "none")
    with holding(state) as daemon:
        before = everything(state)
        with pytest.raises(Busy, match=f"process {daemon.pid} works on the state directory"):
            restore(tmp_path / "b.tar.gz", state, tmp_path / "none", replace=True)
        assert everything(state) == before
        with pytest.raises(Busy):
            lock.hold(state)
        save_to_file(tmp_path / "meanwhile.tar.gz", state, tmp_path / "none")
        daemon.kill()  # however it dies
        daemon.wait()
        restore(tmp_path / "b.tar.gz", state, tmp_path / "none", replace=True)


@pytest.mark.skipif(os.getuid() != 0, reason="needs two accounts")
def test_root_saves_and_restores_for_the_account_of_the_service(reachable: Path, tmp_path: Path) -> None:
    state = make(reachable / "state", messages=10)
    for path in (state, *state.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    state.chmod(0o700)
    save_to_file(tmp_path / "b.tar.gz", state, tmp_path / "none")
    assert (tmp_path / "b.tar.gz").stat().st_uid == 0
    assert {path.stat().st_uid for path in state.rglob("*")} == {NOBODY}
    restore(tmp_path / "b.tar.gz", state, tmp_path / "none", replace=True)
    assert {path.stat().st_uid for path in state.rglob("*")} == {NOBODY}, "also the lock"
    assert os.geteuid() == 0 and os.getegid() == 0
    # A link that the service's account has put there leads root nowhere.
    outside = tmp_path / "root-only"
    outside.mkdir(mode=0o700)
    shutil.rmtree(state / "chats")
    (state / "chats").symlink_to(outside)
    with pytest.raises(HomeboxError):
        restore(tmp_path / "b.tar.gz", state, tmp_path / "none", replace=True)
    assert not [*outside.iterdir()]


def _save_as_nobody(target: str, state: str, told: Connection) -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    try:
        save_to_file(Path(target), Path(state), Path("/nowhere"))
        told.send("")
    except HomeboxError as error:
        told.send(f"{type(error).__name__}: {error}")


@pytest.mark.skipif(os.getuid() != 0, reason="needs two accounts")
def test_somebody_else_saves_nothing_rather_than_a_part(reachable: Path) -> None:
    state = make(reachable / "state", messages=10)
    context = multiprocessing.get_context("fork")  # the interpreter may lie where nobody else can start it
    # First both are closed; then the state can be looked at, and the chats cannot.
    for folder in (state, state / "chats"):
        folder.chmod(0o700)
        ours, theirs = context.Pipe()
        target = str(reachable / "b.tar.gz")
        child = context.Process(target=_save_as_nobody, args=(target, str(state), theirs))
        child.start()
        said = ours.recv()
        child.join()
        assert said.startswith(NotAllowed.__name__) and "sudo homebox backup may" in said
        state.chmod(0o755)


# ---- what is read back


def _unpacks_to(content: bytes | bytearray) -> bytes | None:
    """None: to nothing, it is damaged."""
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error):
        return None


def test_verify_finds_every_flipped_byte_and_every_cut(state: Path, tmp_path: Path) -> None:
    good = tmp_path / "b.tar.gz"
    save_to_file(good, state, tmp_path / "none")
    assert len(verify(good).files) == 9
    content = good.read_bytes()
    harmless = 0
    for place in range(10, len(content), len(content) // 40):
        bad = tmp_path / "bad.tar.gz"
        flipped = bytearray(content)
        flipped[place] ^= 0x10
        bad.write_bytes(flipped)
        if _unpacks_to(flipped) == _unpacks_to(content):
            # Between two blocks of a compressed stream lie a few bits that mean nothing.
            harmless += 1
            assert len(verify(bad).files) == 9
        else:
            with pytest.raises(BadFile):
                verify(bad)
        bad.write_bytes(content[:place])
        with pytest.raises(BadFile):
            verify(bad)
    assert harmless <= 2
    ran = homebox("backup", "--verify", str(tmp_path / "bad.tar.gz"))
    assert ran.returncode == 2 and ran.stderr.startswith(b"homebox: this is no backup, or a damaged one")


def test_a_damaged_backup_touches_nothing(state: Path, tmp_path: Path) -> None:
    save_to_file(tmp_path / "b.tar.gz", state, tmp_path / "none")
    content = (tmp_path / "b.tar.gz").read_bytes()
    (tmp_path / "b.tar.gz").write_bytes(content[: len(content) * 9 // 10])
    before = everything(state)
    with pytest.raises(BadFile):
        restore(tmp_path / "b.tar.gz", state, tmp_path / "none", replace=True)
    assert everything(state) == before and not (state / "daemon.lock").exists()
    with pytest.raises(NotFound, match="there is no backup"):
        restore(tmp_path / "none.tar.gz", state, tmp_path / "none")


def test_the_commands_speak_json_and_import_nothing_of_the_daemon_but_its_lock(
    state: Path, tmp_path: Path
) -> None:
    saved = json.loads(homebox("backup", str(tmp_path / "b.tar.gz"), "--state", str(state), "--json").stdout)
    assert saved["bytes"] == (tmp_path / "b.tar.gz").stat().st_size and len(saved["files"]) == 9
    named = homebox("backup", str(tmp_path), "--state", str(state)).stdout.decode().split()[0]
    assert Path(named).parent == tmp_path and len(verify(Path(named)).files) == 9
    away = homebox("backup", f"{tmp_path}/not-mounted/", "--state", str(state))
    assert away.returncode == 6 and b"there is no directory" in away.stderr
    assert not (tmp_path / "not-mounted").exists()
    checked = json.loads(homebox("backup", "--verify", str(tmp_path / "b.tar.gz"), "--json").stdout)
    assert checked["files"] == saved["files"]
    code = "import sys; import homebox.backup.save, homebox.backup.restore; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"aiohttp", "torch", "tokenizers", "jinja2"} & set(loaded)
    assert [name for name in loaded if name.startswith("homebox.daemon.")] == ["homebox.daemon.lock"]
