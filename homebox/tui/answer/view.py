from textual.content import Content
from textual.message import Message
from textual.widgets import Static


class AnswerView(Static):
    class Flushed(Message):
        def __init__(self, lines_added: int) -> None:
            super().__init__()

    def __init__(self, text: str = "", *, plain: bool = False) -> None:
        super().__init__(Content(text), markup=False)
        self.source = text
        self.hold = False
        self.held_lines = 0

    def grow(self, text: str) -> None:
        self.source = text
        self.update(Content(text))

    def finish(self) -> None:
        pass

    def code_blocks(self) -> list[str]:
        return []
