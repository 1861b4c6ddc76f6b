"""The comparison with other engines: the table says what was measured, a broken peer is a line, nothing is left running."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp.test_utils import TestClient, TestServer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from homebox.bench.client import Delivered
from homebox.bench.peers import run, table
from homebox.bench.peers.catalogue import Place, Slots, peers
from homebox.bench.peers.install import Unavailable, command, last_error
from homebox.bench.peers.serving import free_port, serving
from homebox.bench.peers.transformers_server import Columns
from homebox.bench.peers.wrapper import Asked, Emit, Made, Running, application, in_process, work
from homebox.bench.victim import gaps_meanwhile_ms

# ---- the table


def engine(name: str, tok_s: float | None, gap_ms: float = 10.0, **more: Any) -> dict[str, Any]:
    figures = {} if tok_s is None else {"4": {"tok_s": tok_s, "gap_p50_ms": gap_ms}}
    rounds = [{"figures": figures}] * 2
    kept = {"version": "1", "weights": "w", "settings": "s", "failures": [], "notes": []}
    return {"name": name, "rounds": rounds, **kept, **more}


def report(*engines: dict[str, Any]) -> dict[str, Any]:
    machine = {"cpu": "c", "cores": 2, "memory_gib": 1, "system": "s", "python": "p", "load_before": 0.0}
    sizes = {"streams": [1, 4], "rounds": 2, "max_tokens": 128, "prompt_tokens": 100}
    return {"machine": machine, "at": "now", "model": "m", "engines": list(engines), **sizes}


def test_we_are_compared_with_the_best_peer_of_each_column() -> None:
    engines = [engine("homebox", 120, 12.0), engine("slow", 50, 8.0), engine("fast", 100, 24.0)]
    assert table.ratio(engines, 4, "tok_s", True) == pytest.approx(1.2)
    assert table.ratio(engines, 4, "gap_p50_ms", False) == pytest.approx(8 / 12)
    text = table.markdown(report(*engines))
    assert "| **homebox to the best peer** | - | **1.20** |" in text
    assert "| **homebox to the best peer** | - | **0.67** |" in text


def test_a_figure_is_the_median_of_the_rounds_that_have_it() -> None:
    rounds = [{"figures": {"4": {"tok_s": each}}} for each in (1.0, 100.0, 3.0)] + [{"figures": {}}]
    assert table.value({"rounds": rounds}, 4, "tok_s") == 3.0


def test_a_peer_that_could_not_be_measured_is_in_the_table_with_its_reason() -> None:
    text = table.markdown(
        report(engine("homebox", 1), engine("vLLM", None, failures=["not installed: no wheel"]))
    )
    assert "- vLLM: not installed: no wheel" in text
    assert table.ratio([engine("homebox", 1), engine("vLLM", None)], 4, "tok_s", True) is None


def test_what_the_wrapper_costs_is_said() -> None:
    text = table.markdown(report(engine("OpenVINO", 90, in_process=[{"4": 100.0}])))
    assert "| difference | - | -10% |" in text


def test_victims_are_compared_alone_and_meanwhile() -> None:
    names = {name for _, *both in table.VICTIMS for name in both} | {"behind_last_s"}
    victims: dict[str, float | None] = dict.fromkeys(names, 1.0)
    victims |= {"meanwhile_client_ms": 90.0, "alone_engine_ms": None, "meanwhile_engine_ms": None}
    text = table.markdown(report(engine("vLLM", 1, victims=[victims])))
    assert "| p95 gap of a running stream, client, ms | 1.00 > 90.0 (90.0) |" in text
    assert "| p95 gap of a running stream, engine steps, ms | - |" in text


def test_a_stream_that_stood_still_while_a_document_was_read_counts() -> None:
    frozen = Delivered(at_s=[0.0, 0.9, 7.1, 7.2])
    assert gaps_meanwhile_ms(frozen, 1.0, 7.0) == [pytest.approx(6200)]


# ---- the wrapper, with an engine that counts


class Counting:
    """Makes the ids 0, 1, 2, ... for each request, one a step."""

    gather_s = 0.0

    def __init__(self) -> None:
        self.left: dict[int, list[int]] = {}

    def add(self, asked: Asked) -> None:
        self.left[asked.key] = [token % 26 for token in range(asked.max_tokens)]

    def cancel(self, key: int) -> None:
        self.left.pop(key, None)

    def busy(self) -> bool:
        return bool(self.left)

    def step(self, emit: Emit) -> None:
        time.sleep(0.001)  # what computes takes time: else a cancelled request fills the pipe first
        made = []
        for key, left in list(self.left.items()):
            token = left.pop(0)
            if not left:
                del self.left[key]
            made.append(Made(key, [token], None if left else "length"))
        emit(made)


class Dying(Counting):
    def step(self, emit: Emit) -> None:
        raise SystemExit(1)


@pytest.fixture
def tokenizer() -> Tokenizer:
    """One letter a token."""
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return made


@pytest.fixture(params=[Counting])
def wrapped(request: pytest.FixtureRequest) -> Iterator[Running]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, request.param, ()), daemon=True)
    process.start()
    theirs.close()
    assert ours.recv() == "ready"
    yield Running(ours, process)
    ours.close()
    process.join(10)
    assert process.exitcode is not None, "the engine outlived its server"


def asked(wrapped: Running, tokenizer: Tokenizer, body: dict[str, Any], leave_after: int = 0) -> list[Any]:
    """The events of an answer, decoded; hang up after so many."""

    async def ask() -> list[Any]:
        events: list[Any] = []
        async with TestClient(TestServer(application(wrapped, tokenizer, "m"))) as client:
            async with client.post("/v1/completions", json={"stream": True} | body) as answer:
                async for line in answer.content:
                    if line.startswith(b"data: {"):
                        events.append(json.loads(line[6:]))
                    if leave_after and len(events) == leave_after:
                        break
            if leave_after:  # the next answer is not behind the one that nobody reads
                async with asyncio.timeout(10):
                    async with client.post(
                        "/v1/completions", json={"prompt": "a", "max_tokens": 3}
                    ) as answer:
                        events.append(await answer.json())
        return events

    return asyncio.run(ask())


def test_an_answer_comes_token_by_token_and_says_how_many_they_were(
    wrapped: Running, tokenizer: Tokenizer
) -> None:
    *events, last = asked(wrapped, tokenizer, {"prompt": "hello", "max_tokens": 4})
    assert [each["choices"][0]["text"] for each in events] == ["a", "b", "c", "d"]
    assert [each["choices"][0]["finish_reason"] for each in events] == [None, None, None, "length"]
    assert last["usage"] == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}


def test_a_prompt_may_be_token_ids(wrapped: Running, tokenizer: Tokenizer) -> None:
    assert asked(wrapped, tokenizer, {"prompt": [1, 2], "max_tokens": 1})[-1]["usage"]["prompt_tokens"] == 2


def test_whoever_hangs_up_is_not_computed_for(wrapped: Running, tokenizer: Tokenizer) -> None:
    *_, whole = asked(wrapped, tokenizer, {"prompt": "a", "max_tokens": 10**7}, leave_after=2)
    assert whole["choices"][0]["text"] == "abc"


@pytest.mark.parametrize("wrapped", [Dying], indirect=True)
def test_an_engine_that_dies_ends_the_answers(wrapped: Running, tokenizer: Tokenizer) -> None:
    *events, _ = asked(wrapped, tokenizer, {"prompt": "a", "max_tokens": 4})
    assert events[-1]["choices"][0]["finish_reason"] == "error"


def test_the_same_engine_is_measured_without_a_server() -> None:
    assert in_process(Counting(), streams=3, max_tokens=5, prompt_tokens=2) > 0


class Column(list[int]):
    """A tensor's part of one."""

    def reshape(self, _: int) -> Column:
        return self

    def tolist(self) -> list[int]:
        return list(self)


def test_a_row_of_a_static_batch_is_over_when_it_has_its_length() -> None:
    made: list[list[Made]] = []
    columns = Columns([Asked(1, [5], 1, True), Asked(2, [5], 3, False)], 9, made.append)
    columns.put(Column([5, 5]))  # the prompts
    for tokens in ([7, 7], [7, 9], [7, 7]):
        columns.put(Column(tokens))
    assert made == [[Made(1, [7], "length"), Made(2, [7], None)], [Made(2, [9], "stop")], []]


# ---- installing and serving

SERVER = """
import http.server, json, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open(sys.argv[2], "w").write(str(child.pid))
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"{}")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


def test_a_server_and_what_it_started_are_gone_afterwards(tmp_path: Path) -> None:
    port, child = free_port(), tmp_path / "child"
    words = [sys.executable, "-c", SERVER, str(port), str(child)]
    with serving(words, {}, tmp_path / "log", port, 30):
        pid = int(child.read_text())
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["-c", "raise ValueError('no such processor')"], "ValueError: no such processor"),
        (["-c", "import time; time.sleep(600)"], "did not answer within"),
    ],
)
def test_a_server_that_does_not_start_says_why(tmp_path: Path, words: list[str], why: str) -> None:
    log, port = tmp_path / "log", free_port()
    with pytest.raises(Unavailable, match=why), serving([sys.executable, *words], {}, log, port, 4):
        pass


def test_a_command_that_fails_says_its_last_error(tmp_path: Path) -> None:
    words = "import sys; print('ERROR: no matching distribution'); print('a hint'); sys.exit(1)"
    with pytest.raises(Unavailable, match="no matching distribution"):
        command([sys.executable, "-c", words], tmp_path / "log", 30)
    with pytest.raises(Unavailable, match="No such file"):
        command([str(tmp_path / "nothing")], tmp_path / "log", 30)
    assert last_error(tmp_path / "none") == ""


def test_each_peer_has_a_command_with_its_port(tmp_path: Path) -> None:
    place = Place(tmp_path, tmp_path / "m.gguf", tmp_path / "bf16", 4321, 2, Slots(32, 1024))
    for peer in peers():
        words = peer.command(place)
        assert words[words.index("--port") + 1] == "4321", peer.key
        assert str(place.bf16 if peer.bf16 else place.gguf) in words, peer.key


# ---- the whole, with a client and peers that are scripts


@pytest.fixture
def args(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    folder = tmp_path / "state" / "models" / "tiny"
    folder.mkdir(parents=True)
    (folder / "tiny.gguf").touch()
    client = tmp_path / "client.py"
    client.write_text(
        textwrap.dedent("""
        import json, sys
        counts = sys.argv[sys.argv.index("--streams") + 1].split(",")
        rows = [{"streams": int(n), "median": {"tok_s": 7.0 * int(n)}} for n in counts]
        open(sys.argv[sys.argv.index("--json") + 1], "w").write(json.dumps({"rows": rows}))
    """)
    )
    monkeypatch.setattr(run, "HOMEBOX", f"exec(open({str(client)!r}).read())")
    return ["--folder", str(tmp_path / "peers"), "--state-dir", str(tmp_path / "state"), "--model", "tiny"]


def test_one_broken_peer_does_not_keep_the_others_from_being_measured(
    args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def install(peer: Any, root: Path, say: Any) -> str:
        root.mkdir(parents=True, exist_ok=True)
        if peer.key == "llamacpp-wheel":
            raise Unavailable("no wheel for this processor")
        python = root / peer.key / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!{sys.executable}\nimport sys\nsys.argv = sys.argv[3:]\n{FAKE_PEER}")
        python.chmod(0o755)
        return "1.0"

    monkeypatch.setattr(run, "install", install)
    more = ["--engines", "llamacpp-wheel,openvino", "--streams", "1,4", "--rounds", "2", "--no-victims"]
    run.Run(run.arguments([*args, *more])).go()
    said = json.loads((tmp_path / "peers" / "peers.json").read_text())
    broken, good = said["engines"]
    assert broken["failures"] == ["not installed: no wheel for this processor"]
    assert [each["figures"]["4"]["tok_s"] for each in good["rounds"]] == [28.0, 28.0]
    assert good["in_process"] == [{"1": 1.0}, {"1": 1.0}]
    assert not good["failures"]
    assert "no wheel for this processor" in capsys.readouterr().out


FAKE_PEER = """
import http.server
if "--in-process" in sys.argv:
    print('{"1": 1.0}')
    raise SystemExit
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"{}")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Answer).serve_forever()
"""


def test_a_name_that_no_engine_has_is_refused_with_those_that_there_are(args: list[str]) -> None:
    with pytest.raises(SystemExit, match="vllm"):
        run.Run(run.arguments([*args, "--engines", "vlm"]))
