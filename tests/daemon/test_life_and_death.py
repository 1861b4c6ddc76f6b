"""What one part's end, or somebody outside, does to the others: backups, signals, kills, full disks, odd clocks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .test_chats_survive import say
from .test_serve import served

COPY = "import sys, pathlib; from homebox.backup.save import copy_database; copy_database(*map(pathlib.Path, sys.argv[1:]))"


def test_a_program_that_looks_at_a_file_meanwhile_costs_nothing_that_is_said_after_it(
    model: Path, tmp_path: Path
) -> None:
    with served(model, tmp_path) as daemon:
        say(daemon.http, "c", "[[say=one]]", "k1")
        assert daemon.http.get("/homebox/chats/c").status_code == 200  # both connections are open now
        (path,) = (tmp_path / "chats").glob("*.db")
        subprocess.run([sys.executable, "-c", COPY, str(path), str(tmp_path / "copy.db")], check=True)
        second = say(daemon.http, "c2", "[[say=two]]", "k2")
        daemon.process.kill()
        daemon.process.wait()
    with served(model, tmp_path) as daemon:
        kept = daemon.http.get("/homebox/chats/c2")
        assert kept.status_code == 200 and kept.json()["messages"][1]["id"] == second["answer"]
