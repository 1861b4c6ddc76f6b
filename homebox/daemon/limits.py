"""Has this person had enough, for now?

Answers at once, tokens in the last minute and in this day, models, hours, the length of an answer: of the person, over
all keys and sockets. Asked once before anything is queued, over all tokens made until then; an answer ends as `length`
in the step in which the day's are used up. A refusal says the limit, what was used, and when asking again
makes sense. It knows no HTTP and no roles; the rules come with the person, time from a clock that is passed in.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from datetime import time as clock_time

from homebox.daemon.identity import Person
from homebox.daemon.streams import Stream
from homebox.daemon.turns import Turn, TurnState
from homebox.daemon.usage import Counts, Usage
from homebox.errors import HomeboxError, LimitReached, NotAllowed
from homebox.rules import Rules, is_open, opens_at, parse_hours

MINUTE_S = 60.0
USED_UP = "the tokens of this day are used up"


class Minute:
    """The tokens of the last sixty seconds, second by second."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[float, int]] = deque()
        self.used = 0

    def add(self, now: float, tokens: int) -> None:
        second = float(int(now))
        if self._seconds and self._seconds[-1][0] >= second:
            second, before = self._seconds.pop()
            tokens, self.used = tokens + before, self.used - before
        self._seconds.append((second, tokens))
        self.used += tokens
        self.forget(now)

    def forget(self, now: float) -> None:
        """What is older than a minute; everything, where the clock was put back and would not come there for long."""
        while self._seconds and self._seconds[0][0] + MINUTE_S <= now:
            self.used -= self._seconds.popleft()[1]
        if self._seconds and self._seconds[-1][0] > now + MINUTE_S:
            self._seconds.clear()
            self.used = 0

    def below_in_s(self, limit: int, now: float) -> float:
        """When so much is forgotten that `used` is below `limit`."""
        used = self.used
        for second, tokens in self._seconds:
            used -= tokens
            if used < limit:
                return max(0.0, second + MINUTE_S - now)
        return 0.0


@dataclass(eq=False)
class Bill:
    """What a live turn has been counted for so far."""

    turn: Turn
    person: Person
    counts: Counts


class Limits:
    def __init__(self, usage: Usage, *, clock: Callable[[], float] = time.time) -> None:
        self._usage, self._clock = usage, clock
        self._minutes: dict[str, Minute] = {}
        self._bills: dict[str, Bill] = {}
        usage.catch_up = self._count_all

    # ---- before anything is queued

    def check(self, person: Person, model: str, live: Iterable[Stream], more: int, free_in_s: float) -> None:
        """Whether `person` may have `more` answers of `model` now. `live` is everybody's; `free_in_s` says when one
        usually ends. Raises LimitReached, and NotAllowed for a model that is never theirs."""
        self._usage.catch_up()
        rules, now = person.rules, self._clock()
        check_model(person, model)
        self._check_hours(person, now)
        running = sum(stream.submit.person == person.name for stream in live)
        if rules.requests and running + more > rules.requests:
            raise LimitReached(
                f"{person.name} has {running} answer{'s' if running != 1 else ''} under way"
                + (f" and asks for {more} more" if more > 1 else "")
                + f"; {rules.requests} at once {'are' if rules.requests != 1 else 'is'} allowed",
                hint="Wait for one of them, or stop one: homebox streams list",
                retry_after_s=math.ceil(free_in_s),
                numbers={"rule": "requests", "limit": rules.requests, "used": running, "asked": more},
            )
        minute = self._minute(person.name, now)
        if rules.tokens_per_minute and minute.used >= rules.tokens_per_minute:
            raise _used_up(
                "minute",
                person,
                rules.tokens_per_minute,
                minute.used,
                minute.below_in_s(rules.tokens_per_minute, now),
            )
        used = self._usage.today(person.name)
        if rules.tokens_per_day and used >= rules.tokens_per_day:
            raise _used_up("day", person, rules.tokens_per_day, used, _until_midnight_s(now))

    def answer_cap(self, person: Person, general: int) -> int:
        """Most tokens of one answer, 0 for no cap: the owner's general one, the person's, and what is left of the
        day. `step` looks again while it is made, because others of the same person may be made meanwhile."""
        caps = [cap for cap in (general, person.rules.max_answer_tokens) if cap]
        if person.rules.tokens_per_day:
            caps.append(max(1, person.rules.tokens_per_day - self._usage.today(person.name)))
        return min(caps, default=0)

    def _check_hours(self, person: Person, now: float) -> None:
        hours = parse_hours(person.rules.hours or ())
        local = datetime.fromtimestamp(now)
        if is_open(hours, local):
            return
        opens = opens_at(hours, local)
        raise LimitReached(
            f"{person.name} may not ask at this hour, only {', '.join(person.rules.hours or ())}",
            hint=f"It is open again at {opens:%H:%M on %A}." if opens else None,
            retry_after_s=math.ceil(opens.timestamp() - now) if opens else None,
            numbers={
                "rule": "hours",
                "limit": person.rules.hours,
                "now": f"{local:%a %H:%M}",
                "opens_at": int(opens.timestamp()) if opens else None,
            },
        )

    # ---- while it is made

    def opened(self, turn: Turn, person: Person) -> None:
        self._bills[turn.id] = Bill(turn, person, Counts())
        self._usage.add(person.name, person.key, Counts(requests=1))

    def step(self, turn: Turn) -> None:
        """A step has moved `turn`: end the answer of a person whose day is used up. Who has no such limit is counted when
        somebody looks, which is less often than there are tokens."""
        bill = self._bills.get(turn.id)
        if bill is None or not (limit := bill.person.rules.tokens_per_day):
            return
        self._count(bill)
        used = self._usage.added_today(bill.person.name)
        if used < limit or turn.state is TurnState.DONE:
            return
        if turn.tokens_out:
            turn.cut(f"{USED_UP}: {limit}")
        else:
            error = _used_up("day", bill.person, limit, used, _until_midnight_s(self._clock()))
            turn.cancel(USED_UP, error)

    def weight(self, turn: Turn) -> float:
        """How much service its person gets beside others, 1 being the usual."""
        return (self._bills[turn.id].person.rules.weight or 1.0) if turn.id in self._bills else 1.0

    def freed(self, turn: Turn) -> None:
        if bill := self._bills.pop(turn.id, None):
            self._count(bill)

    def _count_all(self) -> None:
        for bill in self._bills.values():
            self._count(bill)

    def _count(self, bill: Bill) -> None:
        total, before = _counts(bill.turn), bill.counts
        if total == before:
            return
        new = Counts(
            tokens_in=total.tokens_in - before.tokens_in,
            tokens_out=total.tokens_out - before.tokens_out,
            cached=total.cached - before.cached,
            counted=max(0, total.counted - before.counted),
        )
        bill.counts = total
        self._usage.add(bill.person.name, bill.person.key, new)
        if new.counted:
            now = self._clock()
            self._minute(bill.person.name, now).add(now, new.counted)

    # ---- how it stands

    def minute_used(self, person: str) -> int:
        self._usage.catch_up()
        return self._minute(person, self._clock()).used

    def headers(self, person: Person, live: Iterable[Stream]) -> dict[str, str]:
        """What OpenAI's clients read: what is left of the limits that this person has."""
        rules = person.rules
        out: dict[str, str] = {}
        if rules.requests:
            used = sum(stream.submit.person == person.name for stream in live)
            out |= _header("requests", rules.requests, used)
        if limit := rules.tokens_per_minute or rules.tokens_per_day:
            used = (
                self.minute_used(person.name) if rules.tokens_per_minute else self._usage.today(person.name)
            )
            out |= _header("tokens", limit, used)
        return out

    def _minute(self, person: str, now: float) -> Minute:
        if len(self._minutes) > 1024 and person not in self._minutes:  # an application may name anybody
            for minute in self._minutes.values():
                minute.forget(now)
            self._minutes = {name: minute for name, minute in self._minutes.items() if minute.used}
        minute = self._minutes.setdefault(person, Minute())
        minute.forget(now)
        return minute


def check_model(person: Person, model: str) -> None:
    """Raises NotAllowed that names the allowed ones."""
    if not may_use(person.rules, model):
        raise NotAllowed(
            f"{person.name} may not use {model!r}, only {', '.join(person.rules.models or ())}",
            hint="The owner decides: homebox people set NAME --models ...",
            param="model",
            numbers={"rule": "models", "limit": person.rules.models},
        )


def may_use(rules: Rules, model: str) -> bool:
    return not rules.models or model in {name.removesuffix(":latest") for name in rules.models}


def _counts(turn: Turn) -> Counts:
    usage = turn.usage
    streams = [choice.stream for choice in turn.choices if choice.stream]
    computed = sum(max(0, stream.charged - stream.cached) for stream in streams)
    begun = usage.prompt_tokens if any(stream.charged for stream in streams) else 0
    return Counts(
        tokens_in=begun,
        tokens_out=usage.completion_tokens,
        cached=min(usage.cached_tokens, begun),
        counted=computed + usage.completion_tokens,
    )


def _used_up(span: str, person: Person, limit: int, used: int, free_in_s: float) -> HomeboxError:
    return LimitReached(
        f"{person.name} has used {used} tokens {'in this minute' if span == 'minute' else 'today'}; {limit} are allowed",
        hint=f"Asking again makes sense in {_span(free_in_s)}.",
        retry_after_s=math.ceil(free_in_s),
        numbers={"rule": f"tokens_per_{span}", "limit": limit, "used": used},
    )


def _span(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{max(1, round(seconds))} s"
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def _until_midnight_s(now: float) -> float:
    tomorrow = datetime.fromtimestamp(now).date() + timedelta(days=1)
    return datetime.combine(tomorrow, clock_time.min).timestamp() - now


def _header(what: str, limit: int, used: int) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{what}": str(limit),
        f"x-ratelimit-remaining-{what}": str(max(0, limit - used)),
    }
