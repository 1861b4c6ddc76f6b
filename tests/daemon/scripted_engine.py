"""What would an engine say that has no model? A deterministic one, without torch, for the daemon's tests.

Speaks every frame of `wire/frames.py` like a real engine: a bounded number runs, the others wait with known places,
prefill takes steps, each step gives each running request one token. What it says is a function of the prompt, the
seed and the position, so a replay must go on with the very same tokens. A prompt (its last message) orders
special behaviour in words:

    [[say=hello_there]]  these words, `_` for a space, then the end token
    [[spell=hello_there]] the same, in one token a character, as no tokeniser would cut it
    [[read=PATH]]        the text of that file, four characters a step, then the end token
    [[die=N]]            SIGKILL in the step that computes output token N (0: the first), in every engine
    [[die_once=N]]       the same, but not where the request came back as a suspect
    [[die_planning]]     SIGKILL between steps, when this request would be in the next one, in every engine
    [[stall=N]]          hang for ever in that step
    [[refuse=CODE]]      a Refused frame with that error code
    [[forever]]          no end token, only max_tokens ends it
    [[pace=MS]]          each step with this request takes so long
    [[rate=N]]           so many steps a second, as long as the machine keeps up
    [[clock]]            each step says the time of day in microseconds and a space, in as many tokens as that takes
    [[nan]]              ends with finish `error`
    [[deaf]]             never confirms an abort of this request

HOMEBOX_SCRIPT_LOAD in the environment: "fail" (leaves with a Fault while loading), "misfit" (the settings cannot be),
"hang" (says nothing), "wait:PATH" (loads until that file exists), or "no_device:PATH" (leaves with a Fault while it
does not). HOMEBOX_SCRIPT_DEVICE is the device that it says it has.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from homebox.wire import frames

BLOCK = 16
TOTAL_BLOCKS = 512
PREFILL_CHUNK = 64
READ_AT_ONCE = 4  # characters of a file in one step: about a token of ordinary text


@dataclass
class Request:
    submit: frames.Submit
    orders: dict[str, str]
    say: list[int] | None
    output: list[int] = field(default_factory=list)
    text: str = ""  # of a file, what is still to be said
    prefilled: int = 0
    exclusive: bool = False

    @property
    def length(self) -> int:
        return len(self.submit.prompt) + len(self.output)

    @property
    def blocks(self) -> int:
        return -(-self.prefilled // BLOCK)


class ScriptedEngine:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.splitter = frames.Splitter("to_engine")
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.step = 0
        self.leave = False
        self.places_changed = False
        self.prefilled_now = 0
        self.due = 0.0  # when the next step of a request with a rate begins

    def send(self, frame: frames.FromEngine) -> None:
        self.connection.sendall(frames.encode(frame))

    # ---- life

    def run(self) -> None:
        self.start = self.wait_for_start()
        self.load()
        manifest = json.loads((Path(self.start.model_dir) / "manifest.json").read_text())
        self.tokenizer = Tokenizer.from_file(str(Path(self.start.model_dir) / "tokenizer.json"))
        self.vocab = manifest["vocab_size"]
        self.context = manifest["context"]
        self.words = [i for i in range(self.vocab) if re.fullmatch(r" ?[a-z]+", self.tokenizer.decode([i]))]
        self.send(
            frames.Ready(
                pid=os.getpid(), device=os.environ.get("HOMEBOX_SCRIPT_DEVICE", "cpu"), max_context=self.context, vocab_size=self.vocab, block_size=BLOCK,
                total_blocks=TOTAL_BLOCKS, kv_bytes=1 << 20, weight_bytes=1 << 20,
                max_running=self.start.max_running, attention="scripted", weights="fp32", kv="bf16",
            )
        )  # fmt: skip
        self.take(b"")  # what came together with Start
        while not self.leave:
            if not self.read(block=not (self.running or self.waiting)):
                return
            if self.running or self.waiting:
                self.one_step()

    def wait_for_start(self) -> frames.Start:
        while data := self.connection.recv(65536):
            for frame in self.splitter.feed(data):
                assert isinstance(frame, frames.Start)
                return frame
        raise SystemExit(0)  # the daemon left before it said anything

    def load(self) -> None:
        how, _, path = os.environ.get("HOMEBOX_SCRIPT_LOAD", "").partition(":")
        if how == "hang":
            signal.pause()
        self.send(frames.Loading("weights", 1, 3))
        if how == "fail":
            print("cannot read the weights: no such disk", file=sys.stderr, flush=True)
            self.send(frames.Fault("bad_file", "the weights are damaged"))
            raise SystemExit(3)
        if how == "misfit":
            self.send(frames.Fault("usage_error", "device 'tpu' is not supported yet"))
            raise SystemExit(1)
        if how == "no_device" and not Path(path).exists():
            self.send(frames.Fault("device_missing", "torch sees no GPU for device 'cuda'"))
            raise SystemExit(1)
        if how == "gpu" and not Path(path).exists() and self.start.device != "auto":
            self.send(frames.Fault("device_missing", f"torch sees no GPU for device {self.start.device!r}"))
            raise SystemExit(1)
        if how == "gpu":  # as the real one: with "auto" the processor would do
            os.environ["HOMEBOX_SCRIPT_DEVICE"] = "cuda:0 (pretended)" if Path(path).exists() else "cpu"
        while how == "wait" and not Path(path).exists():
            self.send(frames.Loading("weights", 2, 3))
            if select.select([self.connection], [], [], 0.01)[0] and not self.peek():
                raise SystemExit(0)

    def peek(self) -> bytes:
        return self.connection.recv(1, socket.MSG_PEEK)

    def read(self, block: bool) -> bool:
        while block or select.select([self.connection], [], [], 0)[0]:
            block = False
            data = self.connection.recv(65536)
            if not data:
                return False
            self.take(data)
        return True

    def take(self, data: bytes) -> None:
        for frame in self.splitter.feed(data):
            match frame:
                case frames.Submit():
                    self.accept(frame)
                case frames.Abort():
                    self.abort(frame.id)
                case frames.Stop():
                    self.leave = True

    # ---- requests

    def accept(self, submit: frames.Submit) -> None:
        text = self.tokenizer.decode(submit.prompt, skip_special_tokens=False)
        newest = text.rpartition("<|im_start|>user")[2]
        orders = dict(re.findall(r"\[\[(\w+)(?:=([^\]]*))?\]\]", newest))
        if code := orders.get("refuse"):
            self.send(frames.Refused(submit.id, code, f"refused as told: {code}"))
            return
        say = None
        if "say" in orders:
            say = self.tokenizer.encode(orders["say"].replace("_", " "), add_special_tokens=False).ids
        if "spell" in orders:
            letters = orders["spell"].replace("_", " ")
            say = [
                one
                for letter in letters
                for one in self.tokenizer.encode(letter, add_special_tokens=False).ids
            ]
        text = Path(orders["read"]).read_text() if "read" in orders else ""
        self.waiting.append(
            Request(submit, orders, say, list(submit.output), text, exclusive=submit.exclusive)
        )
        self.places_changed = True

    def abort(self, name: str) -> None:
        for group in (self.waiting, self.running):
            for request in group:
                if request.submit.id == name and "deaf" not in request.orders:
                    group.remove(request)
                    self.places_changed = True
                    self.done(0, [self.progress(request, finish="cancelled", freed=True)])
                    return

    def one_step(self) -> None:
        while self.waiting and len(self.running) < self.start.max_running:
            self.running.append(self.waiting.pop(0))
            self.places_changed = True
        alone = [request for request in self.running if request.exclusive]
        members = alone[:1] or list(self.running)
        if any("die_planning" in request.orders for request in members):
            os.kill(os.getpid(), signal.SIGKILL)
        self.step += 1
        started = time.monotonic()
        self.send(frames.StepStarted(self.step, 1.0, [r.submit.id for r in members]))
        pace = max((int(r.orders.get("pace", 0)) for r in members), default=0)
        time.sleep(pace / 1000)
        self.keep_the_rate(max((int(r.orders.get("rate", 0)) for r in members), default=0))
        before = sum(request.prefilled for request in members)
        progress = [self.advance(request) for request in members]
        self.prefilled_now = sum(request.prefilled for request in members) - before
        self.done(self.step, progress, started)

    def keep_the_rate(self, steps_a_second: int) -> None:
        if steps_a_second:
            now = time.monotonic()
            self.due = max(self.due + 1 / steps_a_second, now - 0.1)  # a short hitch is made up for
            time.sleep(max(0.0, self.due - now))

    def advance(self, request: Request) -> frames.Progress:
        missing = request.length - request.prefilled
        if missing > PREFILL_CHUNK:
            request.prefilled += PREFILL_CHUNK
            return self.progress(request)
        position, orders = len(request.output), request.orders
        self.misbehave(request, position)
        if "nan" in orders:
            self.running.remove(request)
            return self.progress(request, finish="error", detail="the logits are not numbers")
        request.prefilled = request.length
        sampling = request.submit.sampling
        tokens = self.next_tokens(request, position)[: sampling.max_tokens - position]
        request.output.extend(tokens)
        request.exclusive = False
        finish: frames.FinishReason | None = None
        if tokens[-1] in sampling.end_tokens and not sampling.ignore_eos:
            finish = "stop"
        elif len(request.output) >= sampling.max_tokens or request.length >= self.context:
            finish = "length"
        if finish:
            self.running.remove(request)
        return self.progress(request, tuple(tokens), finish)

    def misbehave(self, request: Request, position: int) -> None:
        orders = request.orders
        if orders.get("die") == str(position):
            os.kill(os.getpid(), signal.SIGKILL)
        if orders.get("die_once") == str(position) and not request.submit.exclusive:
            os.kill(os.getpid(), signal.SIGKILL)
        if orders.get("stall") == str(position):
            signal.pause()

    def next_tokens(self, request: Request, position: int) -> list[int]:
        if request.text:
            said, request.text = request.text[:READ_AT_ONCE], request.text[READ_AT_ONCE:]
        elif "read" in request.orders:
            return list(request.submit.sampling.end_tokens[:1])
        elif "clock" in request.orders:
            said = f"{time.time_ns() // 1000} "
        else:
            return [self.next_token(request, position)]
        ids: list[int] = self.tokenizer.encode(said, add_special_tokens=False).ids
        return ids

    def next_token(self, request: Request, position: int) -> int:
        sampling = request.submit.sampling
        if request.say is not None and position < len(request.say):
            return request.say[position]
        ends = list(sampling.end_tokens)
        may_end = bool(ends) and "forever" not in request.orders and position >= sampling.min_tokens
        if may_end and (request.say is not None or position >= 12):
            return ends[0]
        seed = sampling.seed if sampling.temperature > 0 else 0
        key = f"{request.submit.prompt}|{seed}|{position}".encode()
        return self.words[int.from_bytes(hashlib.sha256(key).digest()[:4]) % len(self.words)]

    def progress(
        self,
        request: Request,
        tokens: tuple[int, ...] = (),
        finish: frames.FinishReason | None = None,
        detail: str = "",
        freed: bool = False,
    ) -> frames.Progress:
        sampling = request.submit.sampling
        count = sampling.logprobs
        logprobs = tuple(self.logprob(token, count) for token in tokens) if count is not None else ()
        prompt_logprobs: tuple[frames.TokenLogprob, ...] = ()
        if sampling.prompt_logprobs is not None and len(request.output) == 1 and tokens:
            prompt_logprobs = tuple(
                self.logprob(token, sampling.prompt_logprobs) for token in request.submit.prompt[1:]
            )
        prefilled = min(request.prefilled, len(request.submit.prompt))
        return frames.Progress(
            request.submit.id, prefilled, 0, tokens, logprobs, prompt_logprobs, finish, detail,
            0 if finish or freed else request.blocks, prefilled,
        )  # fmt: skip

    def logprob(self, token: int, count: int) -> frames.TokenLogprob:
        others = [frames.TopToken((token + i) % self.vocab, -0.5 - i) for i in range(count)]
        return frames.TokenLogprob(-0.5, tuple(others))

    def holdings(self) -> frames.Holdings:
        held: dict[str, int] = {}
        for request in self.running:
            held[request.submit.person] = held.get(request.submit.person, 0) + request.blocks
        return frames.Holdings(tuple(frames.Holding(person, n, 0) for person, n in held.items()), 0)

    def done(self, step: int, progress: list[frames.Progress], started: float = 0.0) -> None:
        places = None
        if self.places_changed:
            self.places_changed = False
            people = [request.submit.person for request in self.waiting]
            places = [
                frames.Place(request.submit.id, i + 1, tuple(people[:i]))
                for i, request in enumerate(self.waiting)
            ]
        used = sum(request.blocks for request in self.running)
        self.send(
            frames.StepDone(
                step, progress, frames.PoolState(TOTAL_BLOCKS, used, 0, TOTAL_BLOCKS - used, 0, 0, 0),
                len(self.running), len(self.waiting), started, (time.monotonic() - started) * 1000 if step else 0.0,
                places=places,
                prefill_tokens=self.prefilled_now,
                holdings=self.holdings(),
            )
        )  # fmt: skip


if __name__ == "__main__":
    ScriptedEngine(socket.socket(fileno=int(sys.argv[1]))).run()
