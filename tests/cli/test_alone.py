"""Does every module of the command line bring all that it needs? The other tests run it where all are imported."""

from __future__ import annotations

import subprocess
import sys

from tests.forks import OURS

# One child for each: nothing of ours is imported before it.
CODE = """
import importlib, os, sys, traceback
import typer.main, msgspec, http.client, ssl, platformdirs
broken = 0
for name in sys.argv[1:]:
    assert not [loaded for loaded in sys.modules if loaded.split(".")[0] == "homebox"]
    if (child := os.fork()) == 0:
        try:
            importlib.import_module(name)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    broken += os.waitpid(child, 0)[1] != 0
sys.exit(broken)
"""


def test_every_module_can_be_imported_alone() -> None:
    assert len(OURS) > 40 and "homebox.cli.ask" in OURS and "homebox.wire.events" in OURS
    done = subprocess.run([sys.executable, "-c", CODE, *OURS], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
