"""Can somebody without a key hold connections open for ever, and is nobody cut off who waits for an answer?"""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from homebox.daemon import serve
from homebox.daemon.keys import Keys

from .box import running, until

IDLE_S = 0.3


@pytest.mark.parametrize("said", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_a_connection_without_a_whole_request_is_closed_and_an_answer_is_not(
    said: bytes, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "IDLE_S", IDLE_S)
    key = Keys(tmp_path).new("anna")
    with running(model, tmp_path, listen="127.0.0.1:0") as box:
        body = {"messages": [{"role": "user", "content": "[[forever]] [[pace=20]]"}], "stream": True}
        with (
            box.far(**{"x-api-key": key}) as anna,
            anna.stream("POST", "/v1/chat/completions", json=body) as answer,
        ):
            assert answer.status_code == 200
            with socket.create_connection(box.server.addresses[0], 10) as stranger:
                began = time.monotonic()
                stranger.sendall(said)
                stranger.settimeout(0.02)

                def closed() -> bool:
                    try:
                        if said:
                            stranger.sendall(b"x")  # slowly, and never the end of the line
                        return stranger.recv(1) == b""
                    except TimeoutError:
                        return False
                    except ConnectionError:
                        return True

                until(closed, within_s=10)
                assert time.monotonic() - began >= IDLE_S
            told = answer.iter_lines()
            until(lambda: next(told).startswith("data: {"))
            assert len(box.streams()) == 1
