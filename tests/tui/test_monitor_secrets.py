"""Nobody's words are in anything that the monitor tells, wherever they were said."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from homebox.cli import figures
from homebox.cli.main import run
from homebox.client.connection import Daemon
from homebox.tui.app import HomeboxApp
from homebox.tui.chat.screen import ChatScreen
from homebox.tui.monitor.screen import MonitorScreen
from homebox.wire import events
from tests.daemon.box import Box, running
from tests.daemon.box import until as wait
from tests.daemon.tiny_model import build
from tests.tui import golden
from tests.tui.monitor_house import sees, until

# Each is said in another place; the last is the id of a chat.
PLACES = ("prompt", "system", "answer", "title", "api", "chatid")
SECRETS = {place: f"zq{place}zq" for place in PLACES}


@pytest.fixture
def busy(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Iterator[Box]:
    """Words everywhere where words can be, of the box's owner and of anna: in streams that run, wait and have ended."""
    model = build(tmp_path_factory.mktemp("models"))
    with running(model, tmp_path, max_running=3) as box, box.client(**{"X-Homebox-As": "anna"}) as anna:
        chat = f"/homebox/chats/{SECRETS['chatid']}"
        said = f"[[spell={SECRETS['answer']}]] {SECRETS['prompt']}"
        body = {"key": "k1", "text": said, "system": SECRETS["system"]}
        box.http.post(f"{chat}/turns", json=body).raise_for_status()
        wait(lambda: any(row.state == "stop" for row in box.snapshot().ended))
        box.http.patch(chat, json={"title": SECRETS["title"]}).raise_for_status()
        body = {"key": "k2", "text": f"[[forever]][[pace=20]] {SECRETS['prompt']}"}
        box.http.post(f"{chat}/turns", json=body).raise_for_status()
        for _ in range(3):
            box.detach(f"[[forever]][[pace=20]] {SECRETS['api']}", anna, max_tokens=900)
        kept = box.http.get(chat).text
        assert all(SECRETS[place] in kept for place in ("prompt", "system", "answer", "title")), kept
        wait(lambda: box.snapshot().waiting and box.snapshot().running == 3)
        wait(lambda: any(row.person == "anna" and row.tokens_out for row in box.snapshot().streams))
        yield box


def test_no_output_of_the_monitor_holds_a_word_of_anybody(busy: Box) -> None:
    with busy.client(**{"X-Homebox-As": "spy"}) as spy:
        outputs = [spy.get(path).text for path in ("/homebox/monitor", "/homebox/streams", "/metrics")]
        with spy.stream("GET", "/homebox/monitor?interval=0.2&history=1") as response:
            outputs.append("")
            for piece in response.iter_text():
                outputs[-1] += piece
                if "anna" in piece and piece.endswith("\n"):
                    break
        now = events.decode_snapshot(spy.get("/homebox/monitor").content)
    assert len(now.streams) == 4 and now.ended, "there was nothing to tell"
    outputs.append("\n".join(figures.screen(now, width=140)))
    outputs += asyncio.run(screens(Path(busy.socket)))
    for output in outputs:
        assert "zq" not in output.lower()
    missing = [output for output in outputs if "anna" not in output]
    assert not missing  # each of them was about her


async def screens(socket: Path) -> list[str]:
    """The monitor's screen with each thing open that can be."""
    found = []
    daemon = Daemon(socket_path=socket, speak_as="spy")
    app = HomeboxApp(daemon, MonitorScreen(daemon))
    async with app.run_test(size=(140, 40)) as pilot:
        await sees(pilot, "4 streams")
        for key, shows in (("enter", "came by"), ("m", "blocks of"), ("g", "qwen")):
            await pilot.press(key)
            if shows != "qwen":
                await sees(pilot, shows)
            await sees(pilot, "anna")
            found.append(golden.shown(app))
        await until(pilot, lambda: "anna" in golden.shown(app))
    return found


def test_beside_a_conversation_others_are_seen_by_name_and_figures_only(busy: Box) -> None:
    async def chat() -> str:
        daemon = Daemon(socket_path=Path(busy.socket), speak_as="spy")
        app = HomeboxApp(daemon, ChatScreen(daemon))
        async with app.run_test(size=(140, 40)) as pilot:
            await sees(pilot, "anna")
            return golden.shown(app)

    shown = asyncio.run(chat())
    assert "HOUSE" in shown and "anna" in shown and "run" in shown
    assert "zq" not in shown.lower()


COMMANDS = (
    "top --once", "top --json", "streams list", "streams list --json", "completion words streams", "usage --json",
    "status --json",
)  # fmt: skip


def test_no_command_tells_anybody_of_the_words_of_another(
    busy: Box, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Said as somebody else, in this process: the socket knows a person by their account."""
    spy = Daemon(socket_path=Path(busy.socket), speak_as="spy")
    monkeypatch.setattr("homebox.client.connection.from_environment", lambda: spy)
    for command in COMMANDS:
        run(command.split())
        told = capfd.readouterr().out
        assert "zq" not in told.lower(), command
        assert "anna" in told or not command.startswith(("top", "streams", "completion")), command


def test_the_line_of_a_following_monitor_is_as_silent_as_one_picture(
    busy: Box, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`top --jsonl`, until two pictures are there."""
    spy, told = Daemon(socket_path=Path(busy.socket), speak_as="spy"), []
    monkeypatch.setattr("homebox.client.connection.from_environment", lambda: spy)

    def write(line: str) -> int:
        told.append(line)
        if len(told) == 2:
            raise BrokenPipeError
        return len(line)

    monkeypatch.setattr("sys.stdout.write", write)
    with pytest.raises(BrokenPipeError):
        run(["top", "--jsonl", "--interval", "0.2"])
    assert all("anna" in line and "zq" not in line.lower() for line in told)
