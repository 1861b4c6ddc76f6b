"""What does the daemon say to another account of this machine? Requests from a child process with a uid of its own."""

from __future__ import annotations

import http.client
import json
import os
import socket
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .box import Box

NOBODY = 65534


def let_everybody_in(box: Box) -> None:
    """A socket that other accounts may open, as its group would in an installed box."""
    path = Path(box.socket)
    path.chmod(0o666)
    for folder in path.parents:
        if folder.stat().st_uid == os.geteuid() and folder not in (Path("/tmp"), Path("/")):
            folder.chmod(folder.stat().st_mode | 0o011)


def as_account(
    box: Box,
    requests: Sequence[tuple[str, str, Any]],
    uid: int = NOBODY,
    gid: int = NOBODY,
    groups: Sequence[int] = (),
) -> list[tuple[int, Any]]:
    """Status and JSON of each (method, path, body), asked by a child that is this account."""
    let_everybody_in(box)
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        status = 0
        try:
            os.setgroups(list(groups))
            os.setgid(gid)
            os.setuid(uid)
            for method, path, body in requests:
                connection = http.client.HTTPConnection("box")
                connection.sock = socket.socket(socket.AF_UNIX)
                connection.sock.connect(box.socket)
                headers = {"Content-Type": "application/json"}
                connection.request(method, path, json.dumps(body) if body is not None else None, headers)
                answer = connection.getresponse()
                line = json.dumps([answer.status, answer.read().decode()])
                os.write(writing, line.encode() + b"\n")
        except BaseException:
            status = 1
            os.write(writing, json.dumps([0, traceback.format_exc()]).encode() + b"\n")
        os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as lines:
        answers = [json.loads(line) for line in lines]
    assert os.waitpid(child, 0)[1] == 0, answers
    return [(status, _json(text)) for status, text in answers]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
