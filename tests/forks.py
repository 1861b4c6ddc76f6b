"""How does a test get a Python process of its own without waiting for an interpreter to start and import?

`Fork` is a `subprocess.Popen` for `python -c CODE ...` and `python FILE ...`. What it starts is a process like any other:
with its own pid, streams, signals and exit status, a child of the tests. But it is forked from an interpreter that has
imported what it needs and has never had a thread, so that a command takes a sixth of the time.
What is said before the first line of a program runs (an encoding, PYTHONUNBUFFERED), and every start that is asked for
in a way that is not known here, gets an interpreter of its own, as from `subprocess.Popen`.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-c", "from homebox.cli.main import main; main()"]
LIBRARIES = (
    "http.client", "json", "msgspec", "platformdirs", "pydantic", "ssl", "tomllib", "typer.main", "uuid", "zoneinfo",
)  # fmt: skip
# What a command imports. That each of these can be imported alone is a test of its own.
OURS = tuple(
    module.name
    for room in ("cli", "client", "wire")
    for module in pkgutil.walk_packages([str(ROOT / "homebox" / room)], f"homebox.{room}.")
)
# For those who run a daemon; a test of one command should not wait for these.
SERVER = (
    "aiohttp.web", "jinja2.sandbox", "prometheus_client", "psutil", "tokenizers", "homebox.daemon.app",
    "homebox.daemon.serve",
)  # fmt: skip
PR_SET_CHILD_SUBREAPER = 36
LONGEST_ORDER = 1 << 20
MOST_DESCRIPTORS = 16
OUT_OF_THE_WAY = 512
# What a child inherits as ignored; Python itself ignores the two that are left out.
SIGNALS = sorted(
    signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT}
)


class Fork(subprocess.Popen[Any]):
    """`imports` are modules that the program will need beyond those of a command; they are imported once, for all who
    come after it, too.
    With `terminal` standard input becomes the controlling terminal of a session of its own."""

    def __init__(
        self, args: list[str], *, imports: tuple[str, ...] = (), terminal: bool = False, **more: Any
    ) -> None:
        self._imports, self._terminal = imports, terminal
        super().__init__(args, **more, start_new_session=terminal)

    def _execute_child(self, *given: Any) -> None:
        """Overrides what `subprocess` calls to start the program, after it has made the pipes."""
        args, executable, preexec_fn, _, pass_fds, cwd, env = given[:7]
        pipes = given[10:16]
        *ids, start_new_session, process_group = given[17:]
        args = [args] if isinstance(args, str | bytes) else list(args)
        if executable or preexec_fn or ids != [None, None, None, -1] or not _forkable(args, env):
            if self._terminal:
                given = (*given[:2], lambda: _take_terminal(0), *given[3:])
            return super()._execute_child(*given)  # type: ignore[misc]
        order = {
            "program": args[1:],
            "env": dict(os.environ if env is None else env),
            "cwd": os.fspath(cwd or Path.cwd()),
            "imports": self._imports,
            "session": start_new_session,
            "group": process_group,
            "terminal": self._terminal,
            "ignored": [each for each in SIGNALS if signal.getsignal(each) is signal.SIG_IGN],
            "descriptors": [0, 1, 2, *pass_fds],
        }
        standard = [own if own != -1 else number for number, own in enumerate((pipes[0], pipes[3], pipes[5]))]
        self.pid = _interpreter().fork(order, [*standard, *pass_fds])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        return None


def run(args: list[str], *, input: Any = None, timeout: float | None = None, **more: Any) -> Any:
    """`subprocess.run` with a `Fork`. Streams that are not named are pipes."""
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    if input is not None:
        more["stdin"] = subprocess.PIPE
    with Fork(args, **more) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(args, process.returncode, out, err)


def use_in_asyncio(*imports: str) -> None:
    """From now on the processes that asyncio starts are forks, where they can be."""
    asyncio: Any = importlib.import_module("asyncio.unix_events")
    popen = functools.partial(Fork, imports=imports)
    asyncio.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": popen})


def _forkable(args: list[Any], env: Mapping[str, str] | None) -> bool:
    if sys.platform != "linux" or not all(isinstance(part, str) for part in args):
        return False
    known = args[:1] == [sys.executable] and len(args) > 1 and (args[1] == "-c" or args[1].endswith(".py"))
    return known and _at_start(os.environ if env is None else env) == _at_start(os.environ)


def _at_start(environ: Mapping[str, str]) -> dict[str, str]:
    """What an interpreter reads while it starts. PYTHONPATH is not of these: a fork always finds these sources."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(("PYTHON", "LC_", "LANG")) and name != "PYTHONPATH"
    }


class _Interpreter:
    """The parent's end of the interpreter that is forked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                cwd=ROOT,
            )

    def fork(self, order: dict[str, Any], descriptors: list[int]) -> int:
        """The pid of a new child of ours."""
        libc = ctypes.CDLL(None)
        with self._lock:
            # The interpreter's child ends at once and leaves its own child to the nearest who wants orphans. That is us
            # for this moment only: those of a daemon that a test kills are for the machine's first process.
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._socket, [json.dumps(order).encode()], descriptors)
                said = self._socket.recv(64)
            finally:
                libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert said, (
            "no process: the interpreter that is forked has ended, or its child could not become what was ordered"
        )
        return int(said)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def _interpreter() -> _Interpreter:
    made = _Interpreter()
    atexit.register(made.close)
    return made


# ---- the interpreter that is forked


def _serve(orders: socket.socket) -> dict[str, Any]:
    """Returns in a child, which has become the process that was ordered; ends with the tests."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _import((*LIBRARIES, *OURS))
    while True:
        # As `socket.recv_fds`, which would give descriptors that a child's children inherit.
        room = socket.CMSG_SPACE(4 * MOST_DESCRIPTORS)
        data, ancillary, _, _ = orders.recvmsg(LONGEST_ORDER, room, socket.MSG_CMSG_CLOEXEC)
        if not data:
            os._exit(0)
        descriptors = list(array.array("i", ancillary[0][2]))
        order = json.loads(data)
        if not sys.modules.keys() >= set(order["imports"]):
            _import(order["imports"])
        reader, writer = os.pipe()
        if (between := os.fork()) == 0:
            if os.fork():
                os._exit(0)
            orders.close()
            _become(order, descriptors, writer)
            return order
        os.waitpid(between, 0)
        for descriptor in (*descriptors, writer):
            os.close(descriptor)
        said = os.read(reader, 64)
        os.close(reader)
        orders.send(said)


def _import(names: Iterable[str]) -> None:
    for name in names:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a child that looks through all this for garbage would copy it, page by page


def _become(order: dict[str, Any], descriptors: list[int], parent: int) -> None:
    """The state in which an interpreter with this environment and these streams begins a program. Says its pid then."""
    parent, *descriptors = [
        fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, OUT_OF_THE_WAY) for each in (parent, *descriptors)
    ]
    os.closerange(3, OUT_OF_THE_WAY)
    for number, descriptor in zip(order["descriptors"], descriptors, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if order["session"]:
        os.setsid()
    if order["group"] != -1:
        os.setpgid(0, order["group"])
    if order["terminal"]:
        _take_terminal(0)
    for number in (
        SIGNALS
    ):  # those that were ignored where the warm interpreter began may be no longer, and others may be
        signal.signal(number, signal.SIG_IGN if number in order["ignored"] else signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    os.chdir(order["cwd"])
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        started: TextIO = getattr(sys, name)
        stream = os.fdopen(
            number, mode, encoding=started.encoding, errors=started.errors, newline="\n", closefd=False
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.write(parent, str(os.getpid()).encode())
    os.close(parent)


def _take_terminal(descriptor: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)


def _main() -> None:
    order = _serve(socket.socket(fileno=int(sys.argv[1])))
    what, *rest = order["program"]
    if what == "-c":
        code, *rest = rest
        sys.argv, sys.path[0], name = ["-c", *rest], "", "<string>"
    else:
        code, name = Path(what).read_text(), what
        sys.argv, sys.path[0] = [what, *rest], str(Path(what).parent)
    main = sys.modules["__main__"]
    for left in [left for left in vars(main) if not left.startswith("__")]:
        del vars(main)[left]
    vars(main)["__file__"] = name
    exec(compile(code, name, "exec"), vars(main))


if __name__ == "__main__":
    _main()
