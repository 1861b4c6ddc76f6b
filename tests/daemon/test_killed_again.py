"""Four people chat, and the daemon is killed at any moment, again and again: what was taken is there, once, and true."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from homebox.daemon.keys import Keys
from tests.forks import SERVER, Fork

from .box import SCRIPT, state_with

PEOPLE = ("anna", "ben", "cleo", "dara")
TURNS_A_CHAT = 2
VERSE = "one small boat on a large sea with many fish and seven cats who sat on the garden wall"
SERVE = f"""
import asyncio, sys
from homebox.config import Settings
from homebox.daemon.serve import run

settings = Settings(state_dir=sys.argv[1], socket=sys.argv[2], model="tiny", listen="127.0.0.1:0")
ready = lambda server: print(server.addresses[0][1], flush=True)
asyncio.run(run(settings, command={SCRIPT!r}, ready=ready))
"""


@contextmanager
def serving(state: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-c", SERVE, str(state), str(state / "run" / "api.sock")]
    with Fork(
        command, imports=SERVER, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout
            yield process, f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


@dataclass
class Talker:
    """One person, who says one thing after the other, and says again what was not acknowledged."""

    name: str
    key: str
    said: int = 0  # things of which it is known that they were taken
    taken: list[dict[str, Any]] = field(default_factory=list)

    def client(self, address: str) -> httpx.Client:
        return httpx.Client(
            verify=False,
            base_url=address,
            timeout=httpx.Timeout(20),
            headers={"Authorization": f"Bearer {self.key}"},
        )

    def script(self, number: int) -> str:
        mixed = random.Random(f"{self.name} {number}")
        return " ".join(mixed.choices(VERSE.split(), k=16))

    def question(self, number: int) -> str:
        return f"{number}: [[pace=4]] [[say={self.script(number).replace(' ', '_')}]]"

    def chat(self, number: int) -> str:
        return f"{self.name}-{number // TURNS_A_CHAT}"

    def talk(self, address: str) -> None:
        """Until nobody answers any more."""
        with self.client(address) as http:
            try:
                while True:
                    body = {"key": f"k{self.said}", "text": self.question(self.said)}
                    answer = http.post(f"/homebox/chats/{self.chat(self.said)}/turns", json=body)
                    assert answer.status_code == 200, answer.text
                    self.taken.append(answer.json())
                    self.said += 1
                    http.get(f"/homebox/turns/{answer.json()['turn']}/events")
            except httpx.TransportError:
                return

    def check(self, address: str) -> int:
        """Everything that was taken is there once, in its order, and each answer is a beginning of its script. Returns
        how many answers are whole."""
        whole = 0
        with self.client(address) as http:
            for number, made in enumerate(self.taken):
                answer = http.get(f"/homebox/chats/{self.chat(number)}")
                assert answer.status_code == 200, answer.text
                messages = answer.json()["messages"]
                place = 2 * (number % TURNS_A_CHAT)
                asked, told = messages[place : place + 2]
                assert (asked["id"], told["id"]) == (made["question"], made["answer"])
                assert asked["content"] == self.question(number)
                assert told["state"] in ("done", "stopped"), told
                script = self.script(number)
                assert script.startswith(told["content"]) and (
                    told["state"] == "stopped" or told["content"] == script
                )
                whole += told["state"] == "done"
                if number + 1 == self.said:  # what nobody acknowledged is there once, or not at all
                    rest = messages[place + 2 :]
                    assert [each["content"] for each in rest[::2]] in ([], [self.question(self.said)])
        return whole


def kill_again_and_again(state: Path, times: int, seed: int) -> list[Talker]:
    people = [Talker(name, Keys(state).new(name)) for name in PEOPLE]
    when = random.Random(seed)
    for _ in range(times):
        with serving(state) as (process, address):
            for person in people:
                person.check(address)
            threads = [threading.Thread(target=person.talk, args=(address,)) for person in people]
            for thread in threads:
                thread.start()
            time.sleep(when.uniform(0.0, 1.2))  # the moment is what is tested
            process.kill()
            process.wait()
            for thread in threads:
                thread.join(20)
                assert not thread.is_alive()
    with serving(state) as (_, address):
        whole = sum(person.check(address) for person in people)
        usage = people[0].client(address).get("/homebox/usage")
        assert usage.status_code == 200, usage.text
    print(f"{times} kills: {sum(person.said for person in people)} taken, {whole} answers whole")
    assert all(person.taken for person in people) and whole
    return people


def test_a_daemon_that_is_killed_keeps_what_it_took_and_doubles_nothing(model: Path, tmp_path: Path) -> None:
    kill_again_and_again(state_with(model, tmp_path), times=3, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_the_same_twenty_times(model: Path, tmp_path: Path, seed: int) -> None:
    kill_again_and_again(state_with(model, tmp_path), times=20, seed=seed)
