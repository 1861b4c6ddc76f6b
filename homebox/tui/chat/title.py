"""Which conversation is open, with which model, how full is its context, and how busy is the box?

The first line of the chat screen, from the conversation and the last picture of the box.
"""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size
from textual.content import Content
from textual.widget import Widget

from homebox.client.conversation import Conversation
from homebox.tui.lines import cut, line
from homebox.wire.events import Snapshot

WIDE = 100


def words(now: Conversation, box: Snapshot | None, *, model: str, me: str, width: int) -> str:
    """The line in exactly `width` cells: the title gives way first."""
    right = _right(now, box, model, me, width)
    title = line(now.title) or "new conversation"
    branch = _branch(now)
    room = width - cell_len(right) - cell_len(branch) - cell_len(" homebox  ") - 2
    left = f" homebox  {cut(title, room)}{branch}"
    if room < 8:  # a narrow screen: the title is worth more than the figures
        return set_cell_size(f" {cut(title, width - cell_len(branch) - 2)}{branch}", width)
    return set_cell_size(left, width - cell_len(right) - 1) + right + " "


def _right(now: Conversation, box: Snapshot | None, model: str, me: str, width: int) -> str:
    parts = [line(model)] if model else []
    if now.ctx_used is not None and now.ctx_max:
        parts.append(f"ctx {100 * now.ctx_used / now.ctx_max:.0f}%")
    if box is not None and box.devices:
        device = box.devices[0]
        util = f"{device.util_percent:.0f}%" if device.util_percent is not None else "n/a"
        parts.append(f"{device.kind.upper()} {util}")
        if width >= WIDE:
            parts.append(f"{box.running} running  {box.waiting} waiting")
            parts.append(me)
    return "  ".join(parts)


def _branch(now: Conversation) -> str:
    """`  [2/3]`: the last place on the path where there is more than one branch."""
    for item in reversed(now.items):
        siblings = item.message.siblings
        if len(siblings) > 1 and item.message.id in siblings:
            return f"  [{siblings.index(item.message.id) + 1}/{len(siblings)}]"
    return ""


class TitleLine(Widget):
    DEFAULT_CSS = "TitleLine { height: 1; background: $panel; color: $text; }"
    _shown = ""

    def show(self, now: Conversation, box: Snapshot | None, *, model: str, me: str) -> None:
        shown = words(now, box, model=model, me=me, width=self.size.width)
        if shown != self._shown:
            self._shown = shown
            self.refresh()

    def render(self) -> Content:
        return Content(self._shown)
