"""A machine of its own for a test: a real systemd as process 1, with nothing but what a Debian has.

Own namespaces for processes, mounts, network and the rest, an own cgroup, and an overlay over this machine's root, so
that our code and an interpreter are visible and nothing that happens inside reaches the outside. Boots in about a
second; what is left of it goes with `close`, also when the test process itself is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

REPOSITORY = Path(__file__).parents[2]
SYSTEMD = Path("/lib/systemd/systemd")
PATH = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TARGET = "homebox-test.target"
BOOT_S = 30.0
MASKED = (
    "systemd-udevd.service", "systemd-udev-trigger.service", "systemd-timesyncd.service",
    "systemd-networkd.service", "systemd-resolved.service", "getty.target", "systemd-logind.service",
    "dev-hugepages.mount", "dev-mqueue.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount",
    "sys-fs-fuse-connections.mount", "sys-kernel-config.mount", "systemd-sysctl.service",
    "systemd-modules-load.service", "systemd-random-seed.service", "systemd-remount-fs.service",
    "systemd-binfmt.service", "proc-sys-fs-binfmt_misc.automount", "systemd-update-utmp.service",
    "systemd-tmpfiles-clean.timer",
)  # fmt: skip

# Run by a shell that is process 1 of the new namespaces and becomes systemd. $W is the work directory outside.
STAGE = r"""
set -eu
R=$W/root
mount -t tmpfs -o size=$ROOM tmpfs $W/over
mkdir $W/over/upper $W/over/work
mount -t overlay overlay -o lowerdir=/,upperdir=$W/over/upper,workdir=$W/over/work $R
mount -t proc proc $R/proc
mount --bind $R/proc/sys $R/proc/sys; mount -o remount,bind,ro $R/proc/sys
mount -t sysfs -o ro sysfs $R/sys
mount -t cgroup2 cgroup2 $R/sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs $R/run
mount -t tmpfs -o mode=1777 tmpfs $R/tmp
mount -t tmpfs -o mode=755 tmpfs $R/dev
for d in null zero full random urandom tty; do touch $R/dev/$d; mount --bind /dev/$d $R/dev/$d; done
mkdir $R/dev/pts $R/dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts $R/dev/pts
ln -s pts/ptmx $R/dev/ptmx
mount -t tmpfs -o mode=1777 tmpfs $R/dev/shm
ln -s /proc/self/fd $R/dev/fd
rm -rf $R/etc/systemd/system $R/opt/homebox $R/var/lib/homebox $R/etc/homebox $R/var/cache/homebox
mkdir -p $R/etc/systemd/system $R/opt/homebox
: > $R/etc/fstab
for unit in $MASKED; do ln -s /dev/null $R/etc/systemd/system/$unit; done
printf '[Unit]\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n' > $R/etc/systemd/system/$TARGET
for pair in $BINDS; do
  from=${pair%%=*}; to=$R${pair##*=}
  if [ -d "$from" ]; then mkdir -p "$to"; else mkdir -p "$(dirname "$to")"; touch "$to"; fi
  mount --bind "$from" "$to"; mount -o remount,bind,ro "$to"
done
hostname homebox-test
cd $R
mkdir -p mnt/old
pivot_root . mnt/old
umount -l /mnt/old
exec env -i container=homebox-test PATH=$PATH LANG=C.UTF-8 \
  /lib/systemd/systemd --system --unit=$TARGET --show-status=no </dev/null
"""


class CannotRun(Exception):
    """Why this machine can have no machine inside."""


class Machine:
    def __init__(self, work: Path, *, network: bool = False, room: str = "1g") -> None:
        """Boot. `network`: share this machine's; `room`: for what is written inside. Raises CannotRun."""
        self._work, self._network, self._room = work, network, room
        self._cgroup = _cgroup_root() / f"homebox-test-{os.getpid()}-{work.name}"
        self._outer: subprocess.Popen[bytes] | None = None
        self._log = work / "boot.log"
        self.pid = 0
        _check()
        for name in ("root", "over"):
            (work / name).mkdir()
        try:
            self._cgroup.mkdir()
        except OSError as error:
            raise CannotRun(f"no cgroup can be made: {error}") from None
        try:
            self._boot()
        except BaseException:
            self.close()
            raise

    def _boot(self) -> None:
        binds = {
            sys.base_prefix: "/opt/homebox/python",
            sysconfig.get_path("purelib"): "/opt/homebox/site",
            str(REPOSITORY): "/opt/homebox/src",
        }
        env = {
            "PATH": PATH, "ROOM": self._room, "W": str(self._work), "TARGET": TARGET, "MASKED": " ".join(MASKED),
            "BINDS": " ".join(f"{outside}={inside}" for outside, inside in binds.items()),
        }  # fmt: skip
        with self._log.open("wb") as log:
            self._outer = subprocess.Popen(
                ["unshare", "--fork", "--kill-child", "--pid", "--mount", "--cgroup", "--uts", "--ipc",
                 *([] if self._network else ["--net"]), "--propagation", "private", "bash", "-c", STAGE],
                env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=self._enter,
            )  # fmt: skip
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children")
        self.pid = int(self._until_booting(children.read_text).split()[0])
        self._until_booting(lambda: self.run("systemctl", "is-active", "--quiet", TARGET).returncode == 0)
        if not self._network:
            self.ok("ip", "link", "set", "lo", "up")

    def _until_booting(self, condition: Callable[[], T]) -> T:
        deadline = time.monotonic() + BOOT_S
        while True:
            assert self._outer
            if self._outer.poll() is not None or time.monotonic() > deadline:
                raise CannotRun(f"systemd does not boot here: {self._log.read_text()[-400:].strip()}")
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                if value := condition():
                    return value
            time.sleep(0.02)

    def _enter(self) -> None:
        (self._cgroup / "cgroup.procs").write_text(str(os.getpid()))
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no test process, no machine

    # ---- what a test does with it

    def popen(self, *command: str, user: str = "", **options: object) -> subprocess.Popen[str]:
        """Start a command inside, as root or as `user`."""
        return subprocess.Popen(self._inside(command, user), text=True, **options)  # type: ignore[call-overload,no-any-return]

    def run(
        self, *command: str, user: str = "", stdin: str = "", timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._inside(command, user), input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
        )  # fmt: skip

    def ok(self, *command: str, user: str = "", stdin: str = "") -> str:
        """What it printed; it must succeed."""
        done = self.run(*command, user=user, stdin=stdin)
        assert done.returncode == 0, f"{shlex.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _inside(self, command: tuple[str, ...], user: str) -> list[str]:
        environment = ["env", "-i", f"PATH={PATH}", "LANG=C.UTF-8"]
        enter = ["nsenter", "-t", str(self.pid), "-a", *environment]
        if user:
            become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--"]
            return [*enter, *become, *environment, f"HOME=/home/{user}", f"USER={user}", *command]
        return [*enter, "HOME=/root", *command]

    def path(self, inside: str) -> Path:
        """A file inside, seen from outside."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def write(self, inside: str, text: str, mode: int = 0o644) -> None:
        path = self.path(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def show(self, unit: str, name: str) -> str:
        return self.ok("systemctl", "show", "--value", "-p", name, unit).strip()

    def journal(self, unit: str = "homebox.service") -> str:
        self.ok("journalctl", "--sync")
        return self.ok("journalctl", "-u", unit, "-o", "cat", "--no-pager")

    # ---- its end

    def close(self) -> None:
        if self._outer and self._outer.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                if self.pid:
                    os.kill(self.pid, signal.SIGRTMIN + 4)  # power off
            try:
                self._outer.wait(10 if self.pid else 0)
            except subprocess.TimeoutExpired:
                self._outer.kill()
                self._outer.wait()
        for folder, _, _ in os.walk(self._cgroup, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()


def _cgroup_root() -> Path:
    unified = Path("/sys/fs/cgroup/unified")
    return unified if unified.exists() else Path("/sys/fs/cgroup")


def _check() -> None:
    """Raises CannotRun where one of the ingredients is missing."""
    if os.geteuid() != 0:
        raise CannotRun("a systemd of its own needs root")
    if not SYSTEMD.exists():
        raise CannotRun(f"there is no {SYSTEMD}")
    for tool in ("unshare", "nsenter", "setpriv", "journalctl", "systemctl", "ip"):
        if shutil.which(tool) is None:
            raise CannotRun(f"there is no {tool}")
    if not (_cgroup_root() / "cgroup.procs").exists():
        raise CannotRun("there is no cgroup2 hierarchy")
