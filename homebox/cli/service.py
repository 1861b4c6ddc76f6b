"""`homebox service`: run the box as a service of this machine, or of one person's session (`--user`).

Says what is done, line by line, on standard output; what systemd is asked and what its answers mean is
`homebox/service`'s business.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated

import msgspec
import typer

from homebox import config
from homebox.client.sanitise import clean, safe_json
from homebox.errors import DaemonUnreachable, HomeboxError, UsageError
from homebox.service import install as installation
from homebox.service import standing, systemctl
from homebox.service.install import Run, Step, Write
from homebox.service.standing import State
from homebox.service.units import SERVICE, SOCKET, Place, drop_ins, machine, person

RELOAD_S = 5.0

app = typer.Typer(
    help="Run the box as a service: install, start, stop, look at it.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)

User = Annotated[bool, typer.Option("--user", help="The box of your own session, not the machine's.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print every file and command, change nothing.")]
_EXIT = {State.STOPPED: DaemonUnreachable.exit_code} | dict.fromkeys(standing.DOWN, 1)


@app.command("install")
def install(user: User = False, dry_run: DryRun = False) -> None:
    """Install the units, enable them and start the box. Again: only what changed.

    Your drop-ins (homebox.service.d/*.conf) are left alone.

    Examples:

    \b
      sudo homebox service install
      homebox service install --dry-run
      homebox service install --user
    """
    place = _place(user)
    try:
        installation.check_readable(place)
        if not dry_run:
            systemctl.check_booted()
            installation.check_root(place, "install")
    except UsageError as error:
        if not dry_run:
            raise
        print(clean(f"homebox: a real run would be refused: {error}"), file=sys.stderr)
    missing = installation.model_missing(place)
    steps = installation.install(place, start=not missing)
    changed = any(isinstance(step, Write) and step.due for step in steps)
    was_running = not dry_run and systemctl.show(user)[SERVICE].get("ActiveState") == "active"
    _take(steps, dry_run, user)
    for file in drop_ins(place):
        print(clean(f"{'yours':11} {file}"))
    if dry_run:
        return
    if missing:
        pull = f"homebox models pull {missing}"
        print(clean(f"It has no model yet: {pull if user else f'sudo {pull}'}, then {_ours('start', user)}"))
    elif was_running and changed:
        print(clean(f"The new units count from the next start on: {_ours('restart', user)}"))
    elif changed:
        print(clean(f"homebox runs. Its socket: {place.socket}"))
        if not user:
            print("Let somebody in: sudo gpasswd -a NAME homebox   (then they log in again)")


@app.command("uninstall")
def uninstall(user: User = False, dry_run: DryRun = False) -> None:
    """Stop the box and remove its units. Models, chats, keys and configuration stay.

    Example:

    \b
      sudo homebox service uninstall
    """
    place = _place(user)
    if not dry_run:
        systemctl.check_booted()
        installation.check_root(place, "uninstall")
    steps = installation.uninstall(place)
    if not steps:
        print("nothing of homebox is installed as a service here")
    _take(steps, dry_run, user)
    left = list(installation.kept(place))
    for what, path in left:
        print(clean(f"{'kept':11} {path} ({what})"))
    for file in drop_ins(place):
        print(clean(f"{'kept':11} {file} (yours)"))
    if left and not dry_run:
        removal = f"rm -r {' '.join(str(path) for _, path in left)}"
        whole = removal if user else f"sudo {removal}; sudo userdel homebox; sudo groupdel homebox-admin"
        print(clean(f"To remove those, too: {whole}"))


@app.command("start")
def start(user: User = False) -> None:
    """Start the box: its socket and its daemon.

    Example:

    \b
      sudo homebox service start
    """
    _tell(user, "start", "start", SOCKET, SERVICE)


@app.command("stop")
def stop(user: User = False) -> None:
    """Stop the box, and its socket. Running answers may finish first, and nothing is lost from the disk.

    Example:

    \b
      sudo homebox service stop
    """
    _tell(user, "stop", "stop", SOCKET, SERVICE)


@app.command("restart")
def restart(user: User = False) -> None:
    """Start the daemon anew. Running answers may finish, new ones wait at the socket meanwhile.

    Example:

    \b
      sudo homebox service restart
    """
    _tell(user, "restart", "restart", SERVICE)


@app.command("reset")
def reset(user: User = False) -> None:
    """Start again after too many crashes. Lets systemd forget them.

    Example:

    \b
      sudo homebox service reset
    """
    _prepare(user, "reset")
    standing.look(user)
    systemctl.run(systemctl.command(user, "reset-failed", SERVICE, SOCKET))
    _tell(user, "reset", "start", SOCKET, SERVICE)


@app.command("reload")
def reload(user: User = False) -> None:
    """Have the daemon read its settings again. Says what came of it.

    Example:

    \b
      sudo homebox service reload
    """
    _prepare(user, "reload")
    before = standing.look(user)
    if before.state is not State.RUNNING:
        raise UsageError(
            "the daemon does not run; it reads the configuration when it starts", hint=_ours("start", user)
        )
    config.load(environ={})  # says at once, and with the line, what the daemon would refuse
    systemctl.run(systemctl.command(user, "reload", SERVICE))
    deadline = time.monotonic() + RELOAD_S
    while (said := standing.look(user).said) == before.said and time.monotonic() < deadline:
        time.sleep(0.05)
    _, _, note = said.partition("; ")
    if "refused" in note:
        raise UsageError(note, hint=f"{_ours('logs', user)} has the details.")
    print(clean(note) or "asked to reload")


@app.command("status")
def status(
    user: User = False, json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False
) -> int:
    """How the service stands, and why. Running, listening (the first question starts it), stopped or failed.

    Ends with 0 when it runs or listens, 3 when it is stopped, 1 when it failed, 6 when it is not installed.

    Examples:

    \b
      homebox service status
      homebox service status --json
    """
    systemctl.check_booted()
    now = standing.look(user)
    code = _EXIT.get(now.state, 0)
    if json:
        print(safe_json(msgspec.json.encode(now).decode()))
        return code
    said = now.said or {State.LISTENING: "the first question starts it"}.get(now.state, "")
    print(clean(f"{now.state}{f': {said}' if said else ''}"))
    if now.pid:
        print(clean(f"  since {now.since}, process {now.pid}, restarted {now.restarts} times"))
    at_boot = "starts" if now.at_boot else "does not start"
    print(clean(f"  socket {now.socket}, service {now.service}, {at_boot} at boot"))
    if now.why:
        lines = now.last_words or (f"(the journal is for root and the group adm: {_ours('logs', user)})",)
        print(clean(f"homebox: {now.why}\n  {now.next_step}\nIts last words:"), file=sys.stderr)
        for line in lines:
            print(f"  {clean(line)}", file=sys.stderr)
    return code


@app.command("logs")
def logs(
    user: User = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", help="The newest N.")] = 100,
) -> None:
    """The service's journal.

    Examples:

    \b
      homebox service logs -n 20
      homebox service logs -f
    """
    systemctl.check_booted()
    argv = systemctl.journal_command(
        user, "-n", str(lines), "-o", "short-iso", *(["-f"] if follow else ["--no-pager"])
    )
    sys.stdout.flush()
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        raise HomeboxError(f"{argv[0]} cannot be run: {error.strerror}") from None


def _place(user: bool) -> Place:
    return person() if user else machine()


def _prepare(user: bool, verb: str) -> None:
    systemctl.check_booted()
    installation.check_root(_place(user), verb)


def _tell(user: bool, verb: str, *arguments: str) -> None:
    """Have systemd do it, and say how it stands then. Raises what keeps it down."""
    _prepare(user, verb)
    standing.look(user)
    try:
        systemctl.run(systemctl.command(user, *arguments))
    except HomeboxError as error:
        raise standing.failure(user, f"homebox service {verb}") or error from None
    now = standing.look(user)
    print(clean(f"{now.state}{f': {now.said}' if now.said else ''}"))


def _take(steps: list[Step], dry_run: bool, user: bool) -> None:
    for step in steps:
        verb, thing = step.what
        if not step.due:
            verb = "unchanged"
        elif dry_run:
            verb = f"would {verb}"
        print(clean(f"{verb:11} {thing}"), flush=True)
        if dry_run and step.due and isinstance(step, Write):
            print(clean("".join(f"    {line}\n" for line in step.text.splitlines())), end="")
        if dry_run or not step.due:
            continue
        try:
            step.do()
        except HomeboxError as error:
            raise (standing.failure(user, thing) if isinstance(step, Run) else None) or error from None


def _ours(verb: str, user: bool) -> str:
    return f"homebox service {verb} --user" if user else f"sudo homebox service {verb}"
