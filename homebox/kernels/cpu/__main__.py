"""`python -m homebox.kernels.cpu`: compile the kernels now, so that the first start need not.

Says on standard output what is used, or why there is none, and ends with 1 in that case. What an interruption leaves is
removed by the next one who compiles.
"""

from __future__ import annotations

import sys

from homebox.kernels.cpu.library import Absent, library


def _say(stage: str, done: int, total: int) -> None:
    if total and not done:
        print(f"setting up: {stage}", file=sys.stderr)


def main() -> int:
    try:
        found = library(_say)
    except KeyboardInterrupt:
        return 130
    print(found.note if isinstance(found, Absent) else f"{found.level}: {found.path}")
    return 1 if isinstance(found, Absent) else 0


if __name__ == "__main__":
    sys.exit(main())
