"""Are the unit files what systemd's own tools call right and safe?"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from homebox.service.units import SERVICE, UNITS, files, machine, person

REPOSITORY = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")


@pytest.mark.parametrize("user", [False, True], ids=["machine", "person"])
def test_systemd_has_nothing_to_say_against_them(tmp_path: Path, user: bool) -> None:
    for path, text in files(person() if user else machine(), Path("/bin/true")).items():
        (tmp_path / path.name).write_text(text)
    units = [str(tmp_path / name) for name in UNITS]
    scope = ["--user"] if user else []
    done = subprocess.run(
        ["systemd-analyze", *scope, "verify", *units],
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_service_is_exposed_to_little(tmp_path: Path) -> None:
    shutil.copy(REPOSITORY / "systemd" / SERVICE, tmp_path)
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=25", str(tmp_path / SERVICE)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    score = re.search(r"Overall exposure level.*: (\d+\.\d+)", done.stdout)
    assert done.returncode == 0 and score and float(score[1]) <= 2.5, done.stdout[-200:]


def test_a_persons_own_box_needs_nothing_that_only_the_machine_may() -> None:
    texts = "".join(files(person(), Path("/opt/my box/100%/homebox")).values())
    assert "User=" not in texts and "/run/homebox" not in texts and "DeviceAllow" not in texts
    assert "ListenStream=%t/homebox/api.sock" in texts and "WantedBy=default.target" in texts
    assert 'ExecStart="/opt/my box/100%%/homebox" serve' in texts
