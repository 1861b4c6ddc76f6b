"""May this request come in, and which turns are there?

The one door to the engine for all dialects: checks the model, the sampling ranges, the length and the queue limits,
makes the turn and submits its streams. Keeps every live turn, and native ones for ten minutes after their end so that
a reader who was cut off can go on. Knows people as names; who may cancel what is decided by the routes' caller.
"""

from __future__ import annotations

import asyncio
import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from homebox.config import Current, Settings
from homebox.daemon import asked
from homebox.daemon.answer import Answer
from homebox.daemon.engine_state import CLOSED, EngineState
from homebox.daemon.identity import Person
from homebox.daemon.limits import Limits as PersonLimits
from homebox.daemon.narrator import Keeper, Narrator
from homebox.daemon.policy import check_asked
from homebox.daemon.prompting import template_preamble
from homebox.daemon.sampling import Limits, Wanted, resolve
from homebox.daemon.streams import Phase
from homebox.daemon.supervisor import Supervisor
from homebox.daemon.turns import Turn, TurnState, Watcher
from homebox.errors import Busy, InvalidRequest, ModelNotFound, NotFound, Unavailable
from homebox.library.manifest import Manifest
from homebox.text.reasoning import ReasoningSplitter, opens_thought
from homebox.text.tokens import Tokenizer
from homebox.wire import frames

log = logging.getLogger("homebox.turns")

KEPT_S = 600.0
KEPT_LOG_BYTES = 64 * 1024 * 1024
MAX_STREAMS = 64  # choices of one request, over all its prompts
ENOUGH_TO_GUESS = 3  # answers that ended lately, before anybody is told how long one takes
_THOUGHT_TAIL = 8  # tokens of the prompt in which a template may have opened a thought


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request, its dialect left behind. `prompts` are token ids; every prompt gets `wanted.n` choices. The last
    `begun` of them are the answer's own, which goes on after them."""

    kind: str  # the prefix of the turn's id: "t", "chatcmpl", "cmpl"
    person: Person
    model: str | None
    prompts: Sequence[Sequence[int]]
    wanted: Wanted
    low_priority: bool = False
    reasoning: bool = False
    as_messages: bool = False  # the prompt is `policy.messages_for` through the template, and nothing else
    begun: int = 0


@dataclass(eq=False)
class Kept:
    """A native turn and its story."""

    owner: Person
    turn: Turn
    narrator: Narrator


class TurnBook:
    def __init__(
        self,
        supervisor: Supervisor,
        tokenizer: Tokenizer,
        manifest: Manifest,
        current: Current,
        people: PersonLimits,
        *,
        on_token: Callable[[Turn, float | None], None] = lambda turn, gap_ms: None,
        on_end: Callable[[Turn], None] = lambda turn: None,
        kept_s: float = KEPT_S,
    ) -> None:
        self._supervisor = supervisor
        self.tokenizer = tokenizer
        self._preamble = template_preamble(tokenizer)
        self.manifest = manifest
        self._current = current
        self._people = people
        self._on_token = on_token
        self._on_end = on_end
        self._kept_s = kept_s
        self._live: dict[str, Turn] = {}
        self._kept: dict[str, Kept] = {}
        self._durations_s: deque[float] = deque(maxlen=32)  # of streams that ended lately
        self.draining = False

    # ---- what is there

    @property
    def _settings(self) -> Settings:
        return self._current.settings

    @property
    def live(self) -> Sequence[Turn]:
        """Turns whose blocks are not all free yet, oldest first."""
        return tuple(self._live.values())

    def turn(self, turn_id: str) -> Turn:
        """Raises NotFound."""
        if kept := self._kept.get(turn_id):
            return kept.turn
        if turn := self._live.get(turn_id):
            return turn
        raise NotFound(f"no turn {turn_id[:80]!r}", hint="Turns are kept for ten minutes after their end.")

    def story(self, turn_id: str, person: Person) -> Kept:
        """A person's own native turn. Raises NotFound, also for somebody else's."""
        kept = self._kept.get(turn_id)
        if kept is None or not person.owns(kept.owner):
            raise NotFound(
                f"no turn {turn_id[:80]!r}", hint="Turns are kept for ten minutes after their end."
            )
        return kept

    @property
    def limits(self) -> Limits:
        ready = self._supervisor.ready
        bounds = [self.manifest.context, ready.max_context if ready else 0, self._settings.max_context]
        return Limits(
            context=min(bound for bound in bounds if bound),
            vocab_size=ready.vocab_size if ready else self.manifest.vocab_size,
            end_tokens=self.tokenizer.end_tokens,
            generation=self.manifest.generation,
            max_answer_tokens=self._settings.max_answer_tokens,
        )

    @property
    def max_running(self) -> int:
        ready = self._supervisor.ready
        return ready.max_running if ready else self._settings.max_running

    # ---- coming in

    def open(self, ask: Ask, watcher: Watcher | None = None) -> Turn:
        """Check everything, then queue it. Raises what a client should be told; nothing is queued then."""
        turn, samplings = self._make(ask)
        turn.watcher = watcher or turn.watcher
        return self._submit(turn, samplings)

    def open_story(self, ask: Ask, keeper: Keeper | None = None) -> Kept:
        """The same for a native turn: its life is told in events, which are kept after its end."""
        turn, samplings = self._make(ask)
        self._sweep()
        kept = self._kept[turn.id] = Kept(ask.person, turn, Narrator(turn, keeper))
        self._submit(turn, samplings)
        return kept

    def withdraw(self, kept: Kept, why: str) -> None:
        """End a native turn of which nobody has heard yet, as if it had not been."""
        self._kept.pop(kept.turn.id, None)  # it may have ended, and been let go of
        kept.turn.cancel(why)

    def _make(self, ask: Ask) -> tuple[Turn, list[frames.Sampling]]:
        self.check_open()
        self.check_model(ask.model)
        if not ask.prompts or not all(ask.prompts):
            field = "prompt" if ask.kind == "cmpl" else "messages"
            raise InvalidRequest("the prompt is empty: it holds no tokens", param=field)
        check_asked(ask.person, ask.wanted, as_messages=ask.as_messages)
        limits = self.limits
        cap = self._people.answer_cap(ask.person, limits.max_answer_tokens)
        limits = msgspec.structs.replace(limits, max_answer_tokens=cap)
        samplings = [resolve(ask.wanted, limits, len(prompt)) for prompt in ask.prompts]
        self._check_room(ask.person, sum(map(len, samplings)))
        turn = Turn(
            kind=ask.kind,
            person=ask.person.name,
            model=self.manifest.name,
            klass="background" if ask.low_priority or ask.person.background else "normal",
            context=limits.context,
            key=ask.person.key,
            abort=self._supervisor.abort,
            on_token=self._on_token,
            on_step=self._people.step,
            on_free=self._freed,
            eta_s=self._eta_s,
        )
        for prompt, choices in zip(ask.prompts, samplings, strict=True):
            for sampling in choices:
                turn.add(self._answer(ask, prompt, sampling), prompt)
        self._people.opened(turn, ask.person)
        return turn, [sampling for choices in samplings for sampling in choices]

    def _submit(self, turn: Turn, samplings: Sequence[frames.Sampling]) -> Turn:
        self._live[turn.id] = turn
        turn.asked = asked.current()
        if turn.asked is not None:
            turn.asked.recorded = True  # by the turn's own line, at its end
        for choice, sampling in zip(turn.choices, samplings, strict=True):
            submit = frames.Submit(
                id=f"{turn.id}:{choice.index}",
                person=turn.person,
                prompt=list(choice.prompt),
                sampling=sampling,
                klass=turn.klass,
                weight=self._people.weight(turn),
                choice=choice.index,
                shared_prefix=self._vouched(choice.prompt),
            )
            turn.submitted(choice, self._supervisor.submit(submit, choice))
        return turn

    def _vouched(self, prompt: Sequence[int]) -> int:
        """How many of the first tokens tell nothing about anybody: cached across persons."""
        size = len(self._preamble)
        return size if list(prompt[:size]) == self._preamble else 0

    def _answer(self, ask: Ask, prompt: Sequence[int], sampling: frames.Sampling) -> Answer:
        begun = prompt[len(prompt) - ask.begun :]
        answer = Answer(
            self.tokenizer,
            stops=ask.wanted.stop,
            min_tokens=sampling.min_tokens
            + len(begun),  # what was said is not looked through for stops again
            splitter=self._splitter(prompt[: len(prompt) - ask.begun]) if ask.reasoning else None,
        )
        for token in begun:
            answer.push(token)
        return answer

    def _splitter(self, prompt: Sequence[int]) -> ReasoningSplitter:
        tail = self.tokenizer.decode(prompt[-_THOUGHT_TAIL:], skip_special=False)
        return ReasoningSplitter(thinking=opens_thought(tail))

    def said_so_far(self, prompt: Sequence[int], own: Sequence[int]) -> Answer:
        """What the tokens `own` of an answer to this prompt say."""
        answer = Answer(self.tokenizer, splitter=self._splitter(prompt))
        for token in own:
            answer.push(token)
        return answer

    def check_open(self) -> None:
        """Raises Unavailable while nothing new is taken."""
        if self.draining:
            raise Unavailable("the daemon is going down", hint="It may be back in a moment.", retry_after_s=5)
        if self._supervisor.state in CLOSED:
            raise self._supervisor.unavailable()

    def check_model(self, name: str | None) -> None:
        """Raises ModelNotFound unless it is the one that is loaded, with or without `:latest`."""
        if name is not None and name.removesuffix(":latest") != self.manifest.name:
            raise ModelNotFound(
                f"no model {name[:120]!r}: this daemon serves {self.manifest.name!r}",
                hint="homebox models list shows what is installed.",
                param="model",
            )

    def _check_room(self, who: Person, streams: int) -> None:
        """The person's limits, and those of the queue, counted beyond the engine's free slots. Raises NotAllowed, and
        Busy with the numbers."""
        person, limit = who.name, who.rules.queue or self._settings.queue_per_person
        if streams > min(MAX_STREAMS, self.max_running + limit):
            raise InvalidRequest(
                f"{streams} answers in one request; at most {min(MAX_STREAMS, self.max_running + limit)} have room",
                param="n",
            )
        live = self._supervisor.streams
        self._people.check(who, self.manifest.name, live, streams, self._free_in_s(person))
        waiting = [stream for stream in live if stream.phase is Phase.WAITING]
        free = max(0, self.max_running - (len(live) - len(waiting)))
        mine = sum(stream.submit.person == person for stream in waiting)
        numbers = {"running": len(live) - len(waiting), "slots": self.max_running, "waiting": len(waiting)}
        if mine + streams - free > limit:
            raise Busy(
                f"{person} has {mine} requests waiting; the queue holds {limit} a person",
                hint="Wait for one of them, or cancel one: homebox streams list",
                retry_after_s=self._retry_after_s(),
                numbers=numbers | {"yours": mine, "limit": limit},
            )
        if len(waiting) + streams - free > self._settings.queue_total:
            raise Busy(
                f"{len(waiting)} requests are waiting; the queue holds {self._settings.queue_total}",
                hint="Try again in a moment.",
                retry_after_s=self._retry_after_s(),
                numbers=numbers | {"limit": self._settings.queue_total},
            )

    def _retry_after_s(self) -> int:
        """When a place may be free: as often as streams of the usual length leave the slots."""
        if not self._durations_s:
            return 5
        mean = sum(self._durations_s) / len(self._durations_s)
        return min(60, max(1, math.ceil(mean / self.max_running)))

    def _free_in_s(self, person: str) -> float:
        """When this person's oldest answer may be done: it may be of the usual length."""
        ages = [time.monotonic() - turn.created_at for turn in self.live if turn.person == person]
        usual = sum(self._durations_s) / len(self._durations_s) if self._durations_s else 5.0
        return min(60.0, max(1.0, usual - max(ages, default=0.0)))

    def _eta_s(self, position: int) -> float | None:
        """When the answer at this place may begin: slots come free one after the other, each after the usual time of
        an answer. None while there is no engine, or too few answers to know what is usual."""
        if self._supervisor.state is not EngineState.READY or len(self._durations_s) < ENOUGH_TO_GUESS:
            return None
        return round(statistics.median(self._durations_s) * position / self.max_running, 1)

    # ---- going out

    async def cancel(self, turn: Turn, why: str) -> None:
        """End a turn; returns once the engine has freed its blocks."""
        turn.cancel(why)
        await turn.free.wait()

    async def drain(self, within_s: float) -> None:
        """Take nothing new, let what runs finish for so long, then end the rest with its text kept."""
        self.draining = True
        for turn in self.live:
            if turn.state is not TurnState.DONE:  # its reader has heard the end already
                turn.watcher.going_down(within_s)
        deadline = time.monotonic() + within_s
        while self._live and (left := deadline - time.monotonic()) > 0:
            waits = [asyncio.ensure_future(turn.free.wait()) for turn in self.live]
            await asyncio.wait(waits, timeout=left)
            for wait in waits:
                wait.cancel()
        for turn in self.live:
            turn.cancel("daemon restarting", Unavailable("the daemon is restarting", retry_after_s=5))

    def _freed(self, turn: Turn) -> None:
        self._live.pop(turn.id, None)
        self._people.freed(turn)
        if turn.started_at and turn.done_at:
            self._durations_s.append(turn.done_at - turn.started_at)
        timing, usage = turn.timing, turn.usage
        reasons = ",".join(sorted({choice.finish or "" for choice in turn.choices}))
        fields = {
            "turn": turn.id,
            "request": turn.asked.id if turn.asked else None,
            "person": turn.person,
            "model": turn.model,
            "reason": reasons,
            "tokens_in": usage.prompt_tokens,
            "tokens_out": usage.completion_tokens,
            "cached": usage.cached_tokens,
            "queue_ms": round(timing.queue_ms),
            "ttft_ms": None if timing.ttft_ms is None else round(timing.ttft_ms),
            "total_ms": round(timing.total_ms),
            "tok_s": None if timing.tok_s is None else round(timing.tok_s, 1),
        }
        if turn.error:
            fields["error"] = turn.error.code
        log.info("finished", extra={"fields": fields})
        self._on_end(turn)

    def _sweep(self) -> None:
        """Let go of what ended long ago, and of the oldest when the stories grow too large together."""
        now = time.monotonic()
        size = sum(kept.narrator.log.kept_bytes for kept in self._kept.values())
        for turn_id, kept in list(self._kept.items()):
            if kept.turn.state is not TurnState.DONE or kept.turn.done_at is None:
                continue
            if now - kept.turn.done_at > self._kept_s or size > KEPT_LOG_BYTES:
                size -= kept.narrator.log.kept_bytes
                del self._kept[turn_id]
