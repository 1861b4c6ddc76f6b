"""homebox and other engines on this machine: installed, started one at a time, asked by one client, in one table.

    scripts/bench-peers                            all of them, three rounds; MARKDOWN and JSON into the folder
    scripts/bench-peers --install                  only install what is missing: minutes, once
    scripts/bench-peers --engines homebox,openvino --rounds 1 --streams 1,16
    scripts/bench-peers --folder DIR               where the environments are; removing it undoes everything

The client is `homebox bench`, one way: so many streams, each asks again when it has its answer. A round visits every
engine in turn, so that whatever else the machine does meets all of them alike. What cannot be installed, started or
measured is a line in the table. The report is written after every round: stopping early loses nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs
import psutil

from homebox import __version__
from homebox.bench import server
from homebox.bench.peers import table
from homebox.bench.peers.catalogue import SLOT_TOKENS, Peer, Place, Slots, cores, environment, peers
from homebox.bench.peers.install import Unavailable, bf16, install, last_error, with_sources
from homebox.bench.peers.serving import free_port, serving
from homebox.config import state_dir

PHASES_S = 900.0  # of one engine, all numbers of streams
VICTIMS_S = 600.0
VICTIM_SLOTS = Slots(12, 8192)
HOMEBOX = "from homebox.cli.main import main; main()"


@dataclass
class Measured:
    """One engine's part of the report. `peer` is None for ours; `out`: there is no use in trying again."""

    name: str
    peer: Peer | None
    weights: str
    settings: str
    version: str = ""
    out: bool = False
    rounds: list[dict[str, Any]] = field(default_factory=list)
    victims: list[dict[str, Any]] = field(default_factory=list)
    in_process: list[dict[str, float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def failed(self, what: str, why: object) -> None:
        line = f"{what}: {why}"
        if line not in self.failures:
            self.failures.append(line)
        say(f"{self.name}: {line}")

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("peer", "out")}


def say(words: str) -> None:
    print(f"bench-peers: {words}", file=sys.stderr, flush=True)


class Run:
    """One run: what is measured, and where things are."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.root: Path = args.folder
        self.streams = [int(each) for each in args.streams.split(",")]
        self.gguf = _gguf(args.state_dir, args.model)
        self.threads = len(cores())
        known = {peer.key: peer for peer in peers()}
        self.engines = [self._engine(key, known) for key in args.engines.split(",")]

    def _engine(self, key: str, known: dict[str, Peer]) -> Measured:
        if key == table.OURS:
            return Measured(
                table.OURS, None, "the GGUF itself", "as it is installed", f"homebox {__version__}"
            )
        if key not in known:
            raise SystemExit(f"no engine is called {key}: {', '.join([table.OURS, *known])}")
        peer = known[key]
        return Measured(peer.name, peer, peer.weights, peer.settings, notes=list(peer.notes))

    # ---- before the rounds

    def install(self) -> None:
        for engine in self.engines:
            if engine.peer:
                try:
                    engine.version = install(engine.peer, self.root, say)
                    self._weights(engine.peer)
                except Unavailable as error:
                    engine.failed("not installed", error)
                    engine.out = True

    def _weights(self, peer: Peer) -> Path:
        if not peer.bf16:
            return self.root
        converter = next(each for each in peers() if each.package == "transformers")
        return bf16(self.gguf, self.root, converter, say)

    # ---- the rounds

    def round(self, number: int) -> None:
        for engine in self.engines:
            if engine.out or (engine.peer and number >= (engine.peer.rounds or number + 1)):
                continue
            say(f"round {number + 1} of {self.args.rounds}: {engine.name}")
            figures: dict[str, Any] = {}
            engine.rounds.append({"figures": figures})
            for slots, streams in self._servings(engine.peer):
                with self._attempt(engine, "not measured"), self._serving(engine.peer, slots) as where:
                    figures.update(self._phases(where, streams))
            engine.out = not figures
            if engine.peer and engine.peer.in_process and figures:
                with self._attempt(engine, "not measured in process"):
                    engine.in_process.append(self._in_process(engine.peer))

    def victims(self) -> None:
        for engine in self.engines:
            if engine.out or (engine.peer and not engine.peer.victims):
                continue
            say(f"victims: {engine.name}")
            with self._attempt(engine, "victims not measured"):
                engine.victims += self._victims(engine.peer)

    def _servings(self, peer: Peer | None) -> Iterator[tuple[Slots, Sequence[int]]]:
        """A server for all numbers of streams, or one apart for a single one."""
        many = [each for each in self.streams if each > 1] if peer and peer.one_apart else self.streams
        if many != self.streams:
            yield Slots(1, 8192), [1]
        if many:
            yield Slots(max(many), SLOT_TOKENS), many

    @contextlib.contextmanager
    def _attempt(self, engine: Measured, what: str) -> Iterator[None]:
        try:
            yield
        except Unavailable as error:
            engine.failed(what, error)

    @contextlib.contextmanager
    def _serving(self, peer: Peer | None, slots: Slots) -> Iterator[tuple[list[str], dict[str, str]]]:
        """What the client needs to find the server: arguments and environment."""
        if peer is None:
            with self._own_state() as state, _ours(state, self.args.model) as daemon:
                yield [], {"HOMEBOX_SOCKET": str(daemon.socket)}
            return
        place = Place(
            self.root / environment(peer), self.gguf, self._weights(peer), free_port(), self.threads, slots
        )
        env = with_sources({**dict(peer.env), "XDG_CACHE_HOME": str(self.root / "cache")})
        log = self.root / f"{peer.key}-server.log"
        with serving(list(peer.command(place)), env, log, place.port, peer.start_s) as url:
            yield ["--url", url], {}

    @contextlib.contextmanager
    def _own_state(self) -> Iterator[Path]:
        """A state directory with this model and nothing else, so that a daemon that runs already is not in the way."""
        with tempfile.TemporaryDirectory(prefix="homebox-peers-") as folder:
            models = Path(folder) / "models"
            models.mkdir(mode=0o700)
            shutil.copytree(self.gguf.parent, models / self.args.model, copy_function=_link)
            yield Path(folder)

    def _phases(self, where: tuple[list[str], dict[str, str]], streams: Sequence[int]) -> dict[str, Any]:
        args = self.args
        words = [
            *("-c", HOMEBOX, "bench", *where[0], "--ways", "continuous", "--rounds", "1"),
            *("--streams", ",".join(map(str, streams)), "--max-tokens", str(args.max_tokens)),
            *("--prompt-tokens", str(args.prompt_tokens)),
        ]
        report = client([sys.executable, *words], where[1], PHASES_S * len(streams) / 4)
        return {str(row["streams"]): row["median"] for row in report["rows"]}

    def _victims(self, peer: Peer | None) -> list[dict[str, Any]]:
        words = [sys.executable, "-m", "homebox.bench.victim", "--rounds", "1"]
        if peer is None:
            with self._own_state() as state:
                ours = ["--state-dir", str(state), "--model", self.args.model]
                return client([*words, *ours], {}, VICTIMS_S)
        with self._serving(peer, VICTIM_SLOTS) as where:
            return client([*words, *where[0]], {}, VICTIMS_S)

    def _in_process(self, peer: Peer) -> dict[str, float]:
        place = Place(self.root / environment(peer), self.gguf, self.root, 0, self.threads, Slots(1, 0))
        sizes = ("--max-tokens", str(self.args.max_tokens), "--prompt-tokens", str(self.args.prompt_tokens))
        words = [*peer.command(place), "--in-process", self.args.streams, *sizes]
        return json.loads(_output(words, with_sources({}), PHASES_S))

    # ---- after

    def write(self) -> None:
        report = {
            "schema": 1,
            "at": time.strftime("%Y-%m-%d %H:%M"),
            "machine": self.machine,
            "model": self.gguf.name,
            "streams": self.streams,
            "rounds": self.args.rounds,
            "max_tokens": self.args.max_tokens,
            "prompt_tokens": self.args.prompt_tokens,
            "engines": [engine.as_json() for engine in self.engines],
        }
        self.args.out.parent.mkdir(parents=True, exist_ok=True)
        self.args.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
        self.args.out.with_suffix(".md").write_text(table.markdown(report))

    def go(self) -> None:
        self.machine = machine()
        self.install()
        if self.args.install:
            return
        for number in range(self.args.rounds):
            self.round(number)
            self.write()
        if not self.args.no_victims:
            self.victims()
        self.write()
        say(f"wrote {self.args.out.with_suffix('.md')} and .json")
        print(self.args.out.with_suffix(".md").read_text())


@contextlib.contextmanager
def _ours(state: Path, model: str) -> Iterator[server.Server]:
    """A daemon of ours. Raises Unavailable where it does not become ready; an error of the measuring is not ours."""
    with contextlib.ExitStack() as running:
        try:
            daemon = running.enter_context(server.serving(state, model))
        except SystemExit as error:
            raise Unavailable(" ".join(str(error).split())[-300:]) from None
        yield daemon


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def client(words: Sequence[str], env: dict[str, str], within_s: float) -> Any:
    """What a benchmark of ours wrote with `--json`. Raises Unavailable."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        around = {
            name: value for name, value in os.environ.items() if name not in ("HOMEBOX_URL", "HOMEBOX_KEY")
        }
        _output([*words, "--json", str(file)], {**around, **env}, within_s)
        return json.loads(file.read_text())


def _output(words: Sequence[str], env: dict[str, str], within_s: float) -> str:
    """What it printed. Its whole group is ended when it takes too long. Raises Unavailable."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                words,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
            try:
                out, _ = process.communicate(timeout=within_s)
            except subprocess.TimeoutExpired:
                raise Unavailable(f"took longer than {within_s / 60:.0f} minutes") from None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.returncode:
            raise Unavailable(last_error(log) or f"ended with {process.returncode}")
        return out.decode()


def machine() -> dict[str, Any]:
    names = [line for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "cpu": names[0].partition(":")[2].strip() if names else platform.processor(),
        "cores": len(cores()),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _gguf(state: Path, model: str) -> Path:
    folder = state / "models" / model
    found = sorted(folder.glob("*.gguf"))
    if not found:
        raise SystemExit(f"no GGUF file in {folder}: homebox models pull {model}")
    return found[0]


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    keys = ",".join([table.OURS, *(peer.key for peer in peers())])
    cache, state = (
        Path(platformdirs.user_cache_dir("homebox-peers")),
        state_dir(),
    )
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=cache, help=f"[{cache}]")
    parser.add_argument(
        "--state-dir", type=Path, default=state, help=f"where the library of models is [{state}]"
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--engines", default=keys, help=f"[{keys}]")
    parser.add_argument("--streams", default="1,4,16,32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=100)
    parser.add_argument("--out", type=Path, help="FILE.md and FILE.json [peers in the folder]")
    parser.add_argument("--install", action="store_true", help="install what is missing, and no more")
    parser.add_argument("--no-victims", action="store_true")
    args = parser.parse_args(words)
    args.folder = args.folder.expanduser().resolve()
    args.out = args.out or args.folder / "peers"
    return args


def main() -> None:
    def ended(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, ended)  # so that the server that runs just now is ended as well
    Run(arguments()).go()


if __name__ == "__main__":
    main()
