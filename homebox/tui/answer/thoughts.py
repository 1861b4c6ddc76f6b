from textual.content import Content
from textual.widgets import Static


class ThoughtsView(Static):
    folded = True

    def grow(self, text: str) -> None:
        self.update(Content("[-] thinking\n" + text))

    def finish(self, seconds: float | None, tokens: int | None) -> None:
        self.update(Content("[+] thought"))
