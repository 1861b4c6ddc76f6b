"""`homebox people`: who may do what, how much of it, and with which keys.

On the Unix socket nobody needs a key, and nobody has to be entered here: who is not is an adult without limits.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

import msgspec
import typer

from homebox.cli import columns, rule_words, terminal
from homebox.client.sanitise import clean, safe_json
from homebox.errors import HomeboxError, NotFound, UsageError
from homebox.wire.people import KeyRequest, PersonChange, PersonRow

app = typer.Typer(
    help="Who may do what, how much of it, and with which keys.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
keys = typer.Typer(
    help="Make, list and revoke keys for software and for other computers.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
app.add_typer(keys, name="keys")

Json = Annotated[bool, typer.Option("--json", help="JSON, for a program.")]
Name = Annotated[str, typer.Argument(metavar="PERSON", help="The account's name, or that of a key.")]


@app.command("list")
def list_people(json: Json = False) -> None:
    """Who was entered, has a key, or uses the box. Administrators see everybody, others themselves.

    Example:

    \b
      homebox people list
    """
    from homebox.cli import household

    way = household.reach()
    rows = way.people()
    if json:
        _print_json({"people": rows})
        return
    if not rows:
        terminal.say(
            "nobody was entered, and nobody has a key: everybody on the socket is an adult without limits"
        )
        return
    header = ("PERSON", "ROLE", "NOW", "TODAY", "KEYS", "CHATS", "OWN RULES")
    _print(columns.table([header, *(_columns(row, way.counts) for row in rows)], columns.room()))


@app.command("show")
def show(person: Name, json: Json = False) -> None:
    """One person: role, and every rule that holds.

    Example:

    \b
      homebox people show anna
    """
    from homebox.cli import household

    row = next((row for row in household.reach().people() if row.name == person), None)
    if row is None:
        raise NotFound(
            f"nobody called {person[:80]!r} was entered or has a key", hint="homebox people list shows who."
        )
    if json:
        _print_json(row)
    else:
        _print(described(row))


@app.command("set")
def set_person(
    person: Name,
    role: Annotated[
        str | None, typer.Option("--role", metavar="ROLE", help="admin, adult, kid, guest or app.")
    ] = None,
    requests: Annotated[
        int | None, typer.Option("--requests", metavar="N", help="Answers at once; 0: no limit.")
    ] = None,
    queue: Annotated[int | None, typer.Option("--queue", metavar="N", help="Requests that may wait.")] = None,
    tokens_per_minute: Annotated[
        str | None, typer.Option("--tokens-per-minute", metavar="N", help="Like 20k; 0: no limit.")
    ] = None,
    tokens_per_day: Annotated[
        str | None, typer.Option("--tokens-per-day", metavar="N", help="Like 50k; 0: no limit.")
    ] = None,
    max_answer_tokens: Annotated[
        str | None, typer.Option("--max-answer-tokens", metavar="N", help="The longest answer; 0: no limit.")
    ] = None,
    models: Annotated[
        list[str] | None, typer.Option("--models", metavar="NAMES", help="Only these, or none for any.")
    ] = None,
    hours: Annotated[
        list[str] | None,
        typer.Option("--hours", metavar="HOURS", help='"07:00-20:00", "sa-su 09:00-21:00"; none for any.'),
    ] = None,
    weight: Annotated[
        float | None, typer.Option("--weight", metavar="X", help="Share beside others; 1 is usual.")
    ] = None,
    preamble: Annotated[
        str | None,
        typer.Option("--preamble", metavar="TEXT|@FILE", help="Said to the model before all else."),
    ] = None,
    clear: Annotated[
        list[str] | None, typer.Option("--clear", metavar="RULE", help="Leave this rule to the role again.")
    ] = None,
    json: Json = False,
) -> None:
    """Give somebody a role or rules. What is not named stays; it counts from the next request on.

    Tokens are those that had to be computed: prompt tokens that were not cached, and answers.

    Examples:

    \b
      homebox people set anna --role kid --hours 07:00-20:00 --hours "sa-su 08:00-21:00"
      homebox people set anna --tokens-per-day 50k --weight 2
      homebox people set anna --clear hours --preamble @for-anna.txt
    """
    from homebox.cli import household

    rules: dict[str, Any] = {"requests": requests, "queue": queue, "weight": weight}
    for name, text in (
        ("tokens_per_minute", tokens_per_minute),
        ("tokens_per_day", tokens_per_day),
        ("max_answer_tokens", max_answer_tokens),
    ):
        rules[name] = None if text is None else rule_words.count(text, f"--{name.replace('_', '-')}")
    rules["models"] = rule_words.several(models, commas=True) if models else None
    rules["hours"] = rule_words.several(hours, commas=False) if hours else None
    rules["preamble"] = None if preamble is None else rule_words.text_or_file(preamble)
    rules = {name: value for name, value in rules.items() if value is not None}
    cleared = [name.replace("-", "_") for name in clear or []]
    if role is None and not rules and not cleared:
        raise UsageError("nothing to set", hint="homebox people set --help shows what there is.")
    row = household.reach().set(person, PersonChange(role=role, rules=rules, clear=cleared))
    if json:
        _print_json(row)
    else:
        _print(described(row))


@app.command("rm")
def remove(person: Name) -> None:
    """Forget somebody's role and rules. Their keys and chats stay.

    Example:

    \b
      homebox people rm anna
    """
    from homebox.cli import household

    row = household.reach().remove(person)
    kept = f"; {row.keys} of their keys still open{'s' if row.keys == 1 else ''} the box" if row.keys else ""
    print(clean(f"{row.name} has the role {row.role} again, without rules of their own{kept}"))


@keys.command("new")
def new(
    person: Annotated[str, typer.Argument(metavar="PERSON", help="For whom it speaks.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope", metavar="SCOPE", help="chat, monitor or admin; again for more. Usual: chat, monitor."
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="WHEN", help="Like 12h, 90d or 2027-01-31.")
    ] = None,
    background: Annotated[
        bool, typer.Option("--background", help="Its requests give way to everybody else's.")
    ] = False,
    for_people: Annotated[
        bool,
        typer.Option(
            "--for-people", help="An application that says for whom it asks, and is trusted with it."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Make a key and print it; it is shown only now.

    With --for-people the persons behind the application (Open WebUI's user headers, the `user` field) have limits and a
    turn of their own, as NAME@PERSON.

    Examples:

    \b
      homebox people keys new anna
      homebox people keys new dashboard --scope monitor --expires 1y
      homebox people keys new webui --for-people
    """
    from homebox.cli import household

    way = household.reach()
    request = KeyRequest(
        person=person,
        scopes=_scopes(scope or ["chat", "monitor"]),
        expires=None if expires is None else rule_words.expiry(expires),
        background=background,
        for_people=for_people,
    )
    made = way.new_key(request)
    try:
        print(safe_json(msgspec.json.encode(made).decode()) if json else clean(made.key), flush=True)
    except OSError as error:
        way.revoke(made.id)
        raise HomeboxError(
            f"the key could not be shown, so it was taken back: {(error.strerror or str(error)).lower()}"
        ) from None
    print("Keep it: it cannot be shown again.", file=sys.stderr)


@keys.command("list")
def list_keys(json: Json = False) -> None:
    """The keys there are, without their secrets.

    Example:

    \b
      homebox people keys list
    """
    from homebox.cli import household

    found = household.reach().keys()
    if json:
        _print_json({"keys": found})
        return
    if not found:
        terminal.say("nobody has a key")
        return
    rows = [("ID", "PERSON", "SCOPES", "MADE", "USED", "EXPIRES", "")]
    for key in found:
        notes = [word for word, on in (("background", key.background), ("for people", key.for_people)) if on]
        used, ends = rule_words.day(key.last_used), rule_words.day(key.expires)
        scopes = ",".join(key.scopes)
        rows.append((key.id, key.person, scopes, rule_words.day(key.created), used, ends, ", ".join(notes)))
    _print(columns.table(rows, columns.room()))


@keys.command("revoke")
def revoke(key_id: Annotated[str, typer.Argument(metavar="ID", help="As `keys list` shows it.")]) -> None:
    """Take a key's rights away, at once. The next request with it is refused, and what is under way with it ends.

    Example:

    \b
      homebox people keys revoke k3J9xQ2a
    """
    from homebox.cli import household

    key = household.reach().revoke(key_id)
    print(clean(f"{key.id} of {key.person} opens nothing any more"))


def described(row: PersonRow) -> list[str]:
    """A person's role and rules, line by line, with what is used of them."""
    used = {
        "requests": f"{row.running + row.waiting} under way",
        "queue": f"{row.waiting} waiting",
        "tokens_per_minute": f"{row.tokens_minute} used",
        "tokens_per_day": f"{row.tokens_today} used",
    }
    cells = []
    for name, value in rule_words.lines(row.rules):
        cells.append((f"  {name}", f"{value}  ({used[name]})" if name in used else value))
    lines = columns.table(cells) if cells else ["  no limits"]
    return [f"{row.name}  {row.role}", *lines, f"  {row.tokens_today} tokens today"]


def _columns(row: PersonRow, counts: bool) -> tuple[str, ...]:
    own = "  ".join(f"{name}={value}" for name, value in rule_words.lines(row.own))
    now = f"{row.running}+{row.waiting}" if counts else "-"
    return (
        row.name,
        row.role,
        now,
        str(row.tokens_today) if counts else "-",
        str(row.keys),
        "-" if row.chats is None else str(row.chats),
        own or ("-" if row.entered else "not entered"),
    )


def _scopes(words: list[str]) -> tuple[Literal["chat", "monitor", "admin"], ...]:
    parts = [part for word in words for part in word.split(",")]
    try:
        return msgspec.convert(parts, tuple[Literal["chat", "monitor", "admin"], ...])
    except msgspec.ValidationError:
        raise UsageError(f"--scope {','.join(parts)} names none of: chat, monitor, admin") from None


def _print(lines: list[str]) -> None:
    terminal.prepare_stdout()
    sys.stdout.write(clean("\n".join(lines)) + "\n")


def _print_json(value: Any) -> None:
    terminal.prepare_stdout()
    sys.stdout.write(safe_json(msgspec.json.encode(value).decode()) + "\n")
