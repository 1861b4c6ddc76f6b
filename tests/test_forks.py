"""Is a fork of the warm interpreter what an interpreter of its own would be?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import forks
from tests.forks import Fork

REPORT = """
import atexit, json, os, signal, sys, threading
atexit.register(print, "at the end")
print(json.dumps({
    "pid": os.getpid(), "parent": os.getppid(), "argv": sys.argv, "path": sys.path[0], "name": __name__, "cwd": os.getcwd(),
    "environ": dict(os.environ), "threads": threading.active_count(), "group": os.getpgid(0), "session": os.getsid(0),
    "open": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],
    "streams": [[s.encoding, s.errors, s.line_buffering, s.newlines] for s in (sys.stdin, sys.stdout, sys.stderr)],
    "signals": {s.name: str(signal.getsignal(s)).split(" at ")[0] for s in signal.valid_signals() if hasattr(s, "name")},
    "defined": sorted(globals()),
}))
"""


def test_it_finds_everything_as_an_interpreter_of_its_own_does(tmp_path: Path) -> None:
    program, env = [sys.executable, "-c", REPORT, "one", "--two"], dict(os.environ, ONLY="this", TZ="UTC")
    reports = []
    for start in (Fork, subprocess.Popen):
        pipe = subprocess.PIPE
        with start(
            program, env=env, cwd=tmp_path, text=True, stdin=pipe, stdout=pipe, stderr=pipe
        ) as process:
            out, err = process.communicate("")
        said, last = out.splitlines()
        assert (process.returncode, err, last) == (0, "", "at the end")
        reports.append(json.loads(said))
    forked, own = reports
    assert forked.pop("pid") != own.pop("pid") and forked["environ"]["ONLY"] == "this"
    for report in reports:
        report["defined"] = [name for name in report["defined"] if not name.startswith("__")]
    assert forked == own


def test_its_end_is_its_own() -> None:
    assert forks.run([sys.executable, "-c", "raise SystemExit(7)"]).returncode == 7
    broken = forks.run([sys.executable, "-c", "1 / 0"], text=True)
    assert broken.returncode == 1 and broken.stderr.endswith("ZeroDivisionError: division by zero\n")
    with Fork([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as waiting:
        assert waiting.poll() is None and psutil.Process(waiting.pid).ppid() == os.getpid()
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(10) == -signal.SIGTERM
    with pytest.raises(subprocess.TimeoutExpired):
        forks.run([sys.executable, "-c", "import signal; signal.pause()"], timeout=0.2)


def test_what_it_inherits_has_the_same_numbers_and_its_group_is_its_own() -> None:
    reader, writer = os.pipe()
    code = "import os, sys; os.write(int(sys.argv[1]), b'heard'); print(os.getpgid(0) - os.getpid())"
    with Fork(
        [sys.executable, "-c", code, str(writer)],
        pass_fds=[writer],
        process_group=0,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        os.close(writer)
        assert process.communicate()[0] == "0\n"
    assert os.read(reader, 10) == b"heard" and os.read(reader, 10) == b""
    os.close(reader)
