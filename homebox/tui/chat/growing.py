"""How is a screen laid out again twelve times a second, when only the end of a long conversation has grown?

By what is in sight. Textual places every widget of the screen anew for every line that an answer gains, three for each
message that nobody sees, which is most of what a drawing costs after a few turns; and the new height of the column has it
done twice. Its own way for scrolling places what is in sight and finds the rest when somebody asks; this takes it where
nothing but the contents of the column has changed. It knows nothing of conversations.
"""

from __future__ import annotations

from textual import events
from textual.geometry import Size
from textual.screen import Screen
from textual.widget import Widget


class GrowingScreen(Screen[None]):
    """For a screen with one `column` whose contents grow. Textual's version is pinned, and this overrides its inside."""

    @property
    def column(self) -> Widget:
        raise NotImplementedError

    def _refresh_layout(self, size: Size | None = None, scroll: bool = False) -> None:
        if size is None and self._only_the_column_changed():
            self._place_what_is_in_sight()
        else:
            super()._refresh_layout(size, scroll)

    def _only_the_column_changed(self) -> bool:
        """A widget whose place is to be found anew is noted with each box around it, up to one of fixed size."""
        boxes = self._layout_widgets
        return (
            self.is_current
            and not self.app._batch_count
            and self.column in boxes
            and all(box is self.column or self.column in box.ancestors for box in boxes)
        )

    def _place_what_is_in_sight(self) -> None:
        compositor = self._compositor
        compositor.update_widgets(self._dirty_widgets)
        # Said to the layout of the column, it keeps the places of what comes before them.
        self._layout_widgets[self.column] |= {
            box for box in self._layout_widgets if isinstance(box, Widget) and box.parent is self.column
        }
        self._update_timer.pause()
        compositor.reflow_visible(self, self.outer_size)
        self._layout_widgets.clear()
        for widget, (region, _, _, virtual, container, _, _) in compositor.layers:
            if widget._size_updated(region.size, virtual, container, layout=False):
                widget.post_message(events.Resize(region.size, virtual, container))
        self._compositor_refresh()
        self.screen_layout_refresh_signal.publish(self)
