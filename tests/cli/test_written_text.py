"""Whatever a command writes to a terminal is a constant, or went through the sanitiser: read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import homebox

ROOT = Path(homebox.__file__).parent
# Functions that are given text which their callers have made safe, or which has nothing of anybody's in it.
TRUSTED = {
    "answer.py": {"_put", "_deliver"},  # of the writers, each of which feeds a sanitiser or `safe_json`
    "transcript.py": {"write"},
    "keyboard.py": {"_put"},  # draws what `_shown` has made safe
    "main.py": {"run"},  # help and usage: our own words
    "streams.py": {"list_streams"},  # lines of `client/lines.py`, which sanitises each part
    "top.py": {"_show"},
    "usage.py": {"usage"},  # columns sanitise their cells
    "audit.py": {"audit"},
    "status.py": {"status"},
    "completion.py": {"show", "words"},
    "version.py": {"version"},
    "start.py": {"_run"},
}
WRITES = {"print", "write", "echo", "confirm"}
SAFE = {"clean", "safe_json", "inline", "clip", "feed"}


def written(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.Call]]:
    """Every call that writes to a standard stream, and the function in which it stands."""
    for node in ast.iter_child_nodes(tree):
        name = node.name if isinstance(node, ast.FunctionDef) else inside
        if isinstance(node, ast.Call) and _writes(node.func):
            yield inside, node
        yield from written(node, name)


def _writes(called: ast.expr) -> bool:
    if isinstance(called, ast.Name):
        return called.id == "print"
    if not isinstance(called, ast.Attribute) or called.attr not in WRITES:
        return False
    return "sys.std" in ast.unparse(called.value) or ast.unparse(called.value) == "typer"


def is_safe(call: ast.Call) -> bool:
    """Nothing variable in it, or the sanitiser around what is."""
    return all(_safe(each) for each in call.args)


def _safe(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Call):
        called = node.func
        return (called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")) in SAFE
    if isinstance(node, ast.BinOp):
        return _safe(node.left) and _safe(node.right)
    if isinstance(node, ast.JoinedStr):
        return all(_safe(each) for each in node.values)
    if isinstance(node, ast.FormattedValue):
        return _safe(node.value)
    if isinstance(node, ast.IfExp):
        return _safe(node.body) and _safe(node.orelse)
    return isinstance(node, ast.BoolOp) and all(map(_safe, node.values))


def test_nothing_is_written_that_was_not_sanitised() -> None:
    unsafe, seen = [], 0
    for file in [*(ROOT / "cli").rglob("*.py"), *(ROOT / "tui").rglob("*.py")]:
        for function, call in written(ast.parse(file.read_text())):
            seen += 1
            if function not in TRUSTED.get(file.name, ()) and not is_safe(call):
                unsafe.append(f"{file.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call)[:100]}")
    assert seen > 50 and not unsafe, "\n".join(unsafe)
