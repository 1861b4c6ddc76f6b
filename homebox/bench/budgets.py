"""Is every promise about speed kept? All rows of the budget table, one after the other.

    python -m homebox.bench.budgets [--markdown] [--only chat,start,...]

Runs the other benchmarks and gathers what they found as what, budget, measured, how. From a checkout, since most need the
scripted engine; about ten minutes, and the machine should have nothing else to do. What the looks of the screens are
(sizes, themes, NO_COLOR, TERM=dumb) is in the tests' goldens.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from homebox.bench import attached, chat_screen, monitor, prompt_paste, scripted, start
from homebox.bench.figures import median

MARKS = {None: "", True: "kept", False: "MISSED"}


@dataclass
class Row:
    """One line of the table. `kept` is None where it is to be read, not judged."""

    what: str
    budget: str
    measured: str
    how: str
    kept: bool | None = None


def chat() -> list[Row]:
    args = chat_screen.arguments([])
    how = "`homebox chat` on a pty, a daemon beside it with the scripted engine"
    return [Row(row.what, row.budget, row.measured, how, row.kept) for row in chat_screen.measure(args)]


def paste() -> list[Row]:
    size = 1 << 20
    pastes, keys = zip(*(prompt_paste.one_round(size) for _ in range(5)), strict=True)
    took_ms, key_ms = median(list(pastes)) * 1e3, median(list(keys)) * 1e3
    return [
        Row(
            "paste of 1 MB to its chip",
            "200 ms",
            f"{took_ms:.0f} ms (the key after it {key_ms:.0f} ms)",
            "the prompt on a pty, median of 5",
            took_ms <= 200,
        )
    ]


def starting() -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        door = start.Door(Path(folder) / "s")
        env = os.environ | {"HOMEBOX_SOCKET": str(door.path)}
        for what, args, budget, end in start.measures(door):
            runs = [start.run(args, env, end) for _ in range(15)]
            wall, cpu = min(run.wall_ms for run in runs), min(run.cpu_ms for run in runs)
            found = ", ".join(start.heavy(args, env)) or "none"
            measured = f"{wall:.0f} ms ({cpu:.0f} CPU), heavy imports: {found}"
            rows.append(Row(what, f"{budget} ms", measured, "best of 15 processes", wall <= budget))
    return rows


def watching() -> list[Row]:
    rows = []
    for count in (16, 64):
        found = monitor.watch(count, 20.0, 2.0, (80, 24))
        budget, most = monitor.CORE_BUDGET[count], monitor.MEMORY_BUDGET_MIB
        rows.append(
            Row(
                f"monitor, {count} rows, every 2 s",
                f"{budget:g}% of a core, {most} MiB",
                f"{found.core_percent:.1f}%, {found.resident_mib:.0f} MiB",
                "`homebox top` on a pty for 20 s",
                found.core_percent <= budget and found.resident_mib <= most,
            )
        )
    return rows


def house() -> list[Row]:
    """The daemon's part: its work for those who are attached, stops, and a kill."""
    with tempfile.TemporaryDirectory(prefix="homebox-bench-") as name:
        folder = Path(name)
        scripted.prepare(folder)
        found = attached.work(folder, 3, 10.0)
        with scripted.serving(folder) as (daemon, _):
            found += attached.stop(daemon, 40, "scripted engine", f"[[forever]][[rate={attached.RATE}]]")
        found += attached.kill(folder, 10)
    return [Row(row.what, row.budget, row.measured, row.how) for row in found]


PARTS: dict[str, Callable[[], list[Row]]] = {
    "chat": chat,
    "paste": paste,
    "start": starting,
    "monitor": watching,
    "house": house,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--markdown", action="store_true", help="print the report as a Markdown table")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    args = parser.parse_args()
    before = os.getloadavg()
    rows = [row for name in args.only.split(",") for row in PARTS[name]()]
    load = f"load {before[0]:.1f} before and {os.getloadavg()[0]:.1f} after, {os.cpu_count()} processors"
    lines = [(row.what, row.budget, row.measured, MARKS[row.kept], row.how) for row in rows]
    if args.markdown:
        print(f"\n{load}\n\n| what | budget | measured | | how |\n|---|---|---|---|---|")
        print("\n".join(f"| {' | '.join(line)} |" for line in lines))
    else:
        print(load)
        for what, budget, measured, mark, how in lines:
            print(f"{mark:7} {what} [{budget}]: {measured} ({how})")


if __name__ == "__main__":
    main()
