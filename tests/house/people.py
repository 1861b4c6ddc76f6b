"""Eight people who do what people do: ask, chat, leave in mid-answer, cancel, read slowly, paste a book, get it wrong.

Each is a thread with a random generator and a key of its own; everything goes over TCP. What a person was
promised is checked where it is seen: one end to each answer, no event missing or doubled, a refusal in words.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from homebox.wire import events

NAMES = ("anna", "ben", "mia", "leo", "oma", "opa", "guest", "app")
PATIENCE_S = 600.0  # three answers at once may wait long on a slow machine: it is not speed that is tested
TOPICS = (
    "the sky",
    "a garden party",
    "pasta for four",
    "whales",
    "our neighbours' cat",
    "the French revolution",
)
BAD: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/v1/chat/completions", {"messages": []}),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "temperature": -3}),
    ("POST", "/v1/chat/completions", {"model": "gpt-99", "messages": [{"role": "user", "content": "hi"}]}),
    ("POST", "/v1/completions", {"prompt": "word " * 20_000}),
    ("POST", "/homebox/ask", {"massages": []}),
    ("POST", "/homebox/ask", "no object"),
    ("GET", "/homebox/turns/t-0/events", None),
    ("GET", "/homebox/monitor?interval=never", None),
    ("DELETE", "/homebox/turns/t-0", None),
    ("GET", "/nowhere", None),
)


class Person(threading.Thread):
    """Goes on until `leave` is set. `turns` are the ids of native turns that were taken; `failures` what was wrong."""

    def __init__(
        self, name: str, address: str, key: str, model: str, seed: int, leave: threading.Event
    ) -> None:
        super().__init__(name=name)
        self.model, self.leave = model, leave
        self.random = random.Random(f"{seed} {name}")
        self.http = httpx.Client(
            base_url=address,
            timeout=PATIENCE_S,
            headers={"x-api-key": key},
        )
        self.did: Counter[str] = Counter()
        self.turns: list[str] = []
        self.failures: list[str] = []
        self._chats = 0
        self._habits: dict[Callable[[], None], int] = {
            self.ask: 6, self.ask_as_openai: 6, self.talk: 4, self.walk_away: 4, self.cancel: 2,
            self.ask_for_three: 2, self.read_slowly: 2, self.paste_a_book: 2, self.get_it_wrong: 4, self.look_around: 6, self.watch: 1,
        }  # fmt: skip

    def run(self) -> None:
        while not self.leave.is_set():
            (habit,) = self.random.choices(list(self._habits), weights=list(self._habits.values()))
            try:
                habit()
                self.did[habit.__name__] += 1
            except Exception as error:
                self.failures.append(f"{self.name}, {habit.__name__}: {error!r}")
            self.leave.wait(self.random.random())
        self.http.close()

    # ---- what people do

    def ask(self) -> None:
        self._hear(self._native())

    def ask_as_openai(self) -> None:
        if self.random.random() < 0.5:
            body = self._openai()
            answer = self.http.post("/v1/chat/completions", json=body)
            if self._taken(answer):
                (choice,) = answer.json()["choices"]
                assert choice["finish_reason"] in ("stop", "length"), choice
            return
        with self.http.stream("POST", "/v1/chat/completions", json=self._openai(stream=True)) as answer:
            if self._taken(answer):
                chunks = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
                ends = [c for c in map(json.loads, chunks[:-1]) if c["choices"][0]["finish_reason"]]
                assert chunks[-1] == "[DONE]" and len(ends) == 1, f"{len(ends)} ends, then {chunks[-1]!r}"

    def ask_for_three(self) -> None:
        """Whoever has nothing running is let in before somebody's second and third."""
        answer = self.http.post("/v1/chat/completions", json=self._openai(n=3))
        if self._taken(answer):
            ends = [choice["finish_reason"] for choice in answer.json()["choices"]]
            assert len(ends) == 3 and set(ends) <= {"stop", "length"}, ends

    def talk(self) -> None:
        """A chat of several turns; the connection breaks now and then, and reading goes on where it was."""
        self._chats += 1
        chat = f"{self.name}-{self._chats}"
        for number in range(self.random.randrange(1, 4)):
            said = {"key": f"{number}", "text": self._question(), "options": self._options()}
            answer = self.http.post(f"/homebox/chats/{chat}/turns", json=said)
            if not self._taken(answer):
                return
            turn = answer.json()["turn"]
            assert self.http.post(f"/homebox/chats/{chat}/turns", json=said).json()["turn"] == turn
            self.turns.append(turn)
            self._follow(turn)

    def walk_away(self) -> None:
        native = self.random.random() < 0.5
        request = self._native() if native else self._streamed()
        with request as answer:
            if self._taken(answer):
                pieces = answer.iter_raw(256)
                for _ in zip(range(self.random.randrange(6)), pieces, strict=False):
                    pass

    def cancel(self) -> None:
        turn = self._detach()
        if turn is None:
            return
        time.sleep(self.random.random())
        answer = self.http.delete(f"/homebox/turns/{turn}")
        assert answer.status_code == 200, answer.text
        told = self._follow(turn)
        assert told[-1].reason in ("cancelled", "stop", "length")

    def read_slowly(self) -> None:
        with self._native(max_tokens=120) as answer:
            if self._taken(answer):
                told = []
                for number, line in enumerate(answer.iter_lines()):
                    told.append(events.decode_event(line.encode()))
                    time.sleep(0.2 if number < 15 else 0)
                self._whole(told)

    def paste_a_book(self) -> None:
        book = " ".join(self.random.choice(TOPICS) for _ in range(self.random.randrange(30, 110)))
        self._hear(self._native(book, max_tokens=30))

    def get_it_wrong(self) -> None:
        method, path, body = self.random.choice(BAD)
        answer = self.http.request(method, path, json=body)
        assert answer.status_code in (400, 404), f"{path}: {answer.status_code}"
        assert answer.json()["error"]["message"]

    def look_around(self) -> None:
        for path in ("/health", "/v1/models", "/homebox/streams", "/homebox/monitor"):
            answer = self.http.get(path)
            assert answer.status_code == 200, f"{path}: {answer.status_code}"

    def watch(self) -> None:
        with self.http.stream("GET", "/homebox/monitor?interval=0.5") as answer:
            for _ in zip(range(4), answer.iter_lines(), strict=False):
                pass

    # ---- how

    def _question(self) -> str:
        return f"Tell me {self.random.choice(('about', 'a story of', 'three facts about'))} {self.random.choice(TOPICS)}."

    def _options(self, **more: Any) -> dict[str, Any]:
        return {
            "max_tokens": self.random.randrange(5, 160), "temperature": self.random.choice((0.0, 0.7)),
            "ignore_eos": self.random.random() < 0.3, **more,
        }  # fmt: skip

    def _openai(self, **more: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": self._question()}]
        return {"model": self.model, "messages": messages, **self._options(), **more}

    def _streamed(self) -> Any:
        return self.http.stream("POST", "/v1/chat/completions", json=self._openai(stream=True))

    def _native(self, text: str | None = None, **more: Any) -> Any:
        messages = [{"role": "user", "content": text or self._question()}]
        urgent = "low" if self.name == "app" else "normal"
        body = {"messages": messages, "options": self._options(priority=urgent, **more)}
        return self.http.stream("POST", "/homebox/ask", json=body)

    def _detach(self) -> str | None:
        messages = [{"role": "user", "content": self._question()}]
        body = {"messages": messages, "options": self._options(), "detach": True}
        answer = self.http.post("/homebox/ask", json=body)
        if not self._taken(answer):
            return None
        self.turns.append(answer.json()["turn"])
        return self.turns[-1]

    def _hear(self, request: Any) -> None:
        with request as answer:
            if self._taken(answer):
                self._whole([events.decode_event(line.encode()) for line in answer.iter_lines()])

    def _follow(self, turn: str) -> list[Any]:
        """Every event of a turn, over as many connections as it takes."""
        told: list[Any] = []
        while not told or not isinstance(told[-1], events.Finished):
            after = told[-1].seq if told else 0
            patience = self.random.randrange(1, 40)  # lines until the connection breaks
            with self.http.stream("GET", f"/homebox/turns/{turn}/events?after={after}") as answer:
                assert answer.status_code == 200, answer.status_code
                for line, _ in zip(answer.iter_lines(), range(patience), strict=False):
                    event = events.decode_event(line.encode())
                    if not isinstance(event, events.Heartbeat):
                        told.append(event)
        self._whole(told)
        return told

    @staticmethod
    def _whole(told: list[Any]) -> None:
        told = [event for event in told if not isinstance(event, events.Heartbeat)]
        assert [event.seq for event in told] == list(range(1, len(told) + 1)), "events are missing or doubled"
        ends = [event for event in told if isinstance(event, events.Finished)]
        assert len(ends) == 1 and told[-1] is ends[0] and ends[0].error is None, f"the ends are {ends}"

    @staticmethod
    def _taken(answer: httpx.Response) -> bool:
        """False for a full queue, which is in order; anything else that is not an answer is not."""
        if answer.status_code == 429:
            assert answer.headers["retry-after"]
            return False
        assert answer.status_code == 200, f"{answer.status_code}: {answer.read()[:200]!r}"
        return True


@contextmanager
def living(address: str, keys: dict[str, str], model: str, seed: int) -> Iterator[list[Person]]:
    """All eight, until the block is left; then each finishes what it does."""
    leave = threading.Event()
    people = [Person(name, address, key, model, seed, leave) for name, key in keys.items()]
    for person in people:
        person.start()
    try:
        yield people
    finally:
        leave.set()
        for person in people:
            person.join(PATIENCE_S)
    assert not any(person.is_alive() for person in people)
