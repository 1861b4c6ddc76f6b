"""Is every file that a daemon makes in its state directory closed to others, whatever the umask it was started with?"""

from __future__ import annotations

import os
from pathlib import Path

from homebox.daemon import lock
from homebox.daemon.keys import Keys

from .box import running, until


def test_nobody_else_reads_anything_that_the_daemon_keeps(model: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Keys(tmp_path).new("anna")
        held = lock.hold(tmp_path)
        with running(model, tmp_path) as box:
            assert box.http.put("/homebox/people/leo", json={"role": "kid"}).status_code == 200
            assert box.say("c1", "[[say=hello]]", "1").status_code == 200
            until(lambda: not box.house.book.live)
            until((tmp_path / "usage.db").exists)
            assert box.http.post("/homebox/pause", json={"reason": "a party"}).status_code == 200
            # A journal of SQLite's is there only while something is written.
            found = [path for path in tmp_path.rglob("*") if not {"models", "run"} & {*path.parts}]
            made = [path for path in found if path.suffix != ".db-journal"]
            modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in made}
        held.release()
    finally:
        os.umask(before)
    expected = {"audit.jsonl", "chats", "daemon.lock", "keys.json", "pause.json", "people.json", "usage.db"}
    assert expected <= modes.keys() and any(name.endswith("-wal") for name in modes)
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}
