"""The library: names are no paths, links are not followed, damage is seen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from homebox.errors import BadFile, HomeboxError, ModelNotFound, NoSpace, NotAllowed, UsageError
from homebox.library.adopt import adopt
from homebox.library.files import need_space
from homebox.library.store import Library

PATHS = [
    "../tiny",
    "..",
    ".",
    "",
    "/etc",
    "a/b",
    "a\\b",
    "Tiny",
    "tiny\n",
    "tiny\0",
    ".staging-tiny",
    "-x",
    "ü",
    "a" * 65,
    "sha256:1",
]


@pytest.fixture
def tiny(library: Library, gguf_file: Path) -> Path:
    return adopt(library, gguf_file, "tiny")


@pytest.mark.parametrize("name", PATHS)
def test_a_name_that_could_be_a_path_reaches_nothing(name: str, library: Library, tiny: Path) -> None:
    for look in (library.path, library.read, library.verify):
        with pytest.raises(ModelNotFound):
            look(name)
    for change in (library.remove, library.installed):
        with pytest.raises(UsageError, match="cannot be a model's name"):
            change(name)
    with pytest.raises(UsageError), library.staging(name):
        pass
    assert library.path("tiny") == tiny


def test_what_is_installed_is_listed_read_and_removed(library: Library, tiny: Path) -> None:
    (model,) = library.models()
    assert model == library.read("tiny")
    assert library.verify("tiny") == model
    assert library.damaged() == {}
    assert library.remove("tiny") > 4000
    assert library.models() == []
    for call in (library.read, library.remove):
        with pytest.raises(ModelNotFound):
            call("tiny")
    assert [path.name for path in library.root.iterdir()] == [".lock-tiny"]


def test_an_empty_library_has_no_models_and_makes_no_directories(tmp_path: Path) -> None:
    library = Library(tmp_path / "none")
    assert library.models() == []
    with pytest.raises(ModelNotFound):
        library.remove("tiny")
    assert not library.root.exists()


def test_links_are_not_followed(library: Library, tiny: Path, tmp_path: Path) -> None:
    (library.root / "linked").symlink_to(tiny)
    with pytest.raises(BadFile, match="not a directory"):
        library.read("linked")
    with pytest.raises(ModelNotFound):
        library.remove("linked")
    secret = tmp_path / "secret"
    secret.write_text("x")
    (tiny / "tokenizer.json").unlink()
    (tiny / "tokenizer.json").symlink_to(secret)
    with pytest.raises(BadFile, match="not a plain file"):
        library.path("tiny")
    assert set(library.damaged()) == {"linked", "tiny"}
    library.remove("tiny")
    assert secret.read_text() == "x"


def test_damage_is_found_and_named(library: Library, tiny: Path) -> None:
    weights = tiny / "Tiny-Chat.Q8_0.gguf"
    weights.chmod(0o600)
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    with pytest.raises(BadFile, match="checksum") as caught:
        library.verify("tiny")
    assert str(weights) in caught.value.message
    assert "homebox models rm tiny" in str(caught.value.hint)
    weights.write_bytes(raw[:-1])
    with pytest.raises(BadFile, match="bytes; "):
        library.verify("tiny")
    weights.unlink()
    with pytest.raises(BadFile, match="No such file"):
        library.verify("tiny")


def test_a_manifest_of_another_model_or_of_no_use_is_damage(library: Library, tiny: Path) -> None:
    manifest = tiny / "manifest.json"
    good = manifest.read_text()
    for bad in ("{", "[]", good.replace('"tiny"', '"other"'), good.replace('"tokenizer.json"', '"../../x"')):
        manifest.write_text(bad)
        with pytest.raises(BadFile):
            library.read("tiny")
        assert list(library.damaged()) == ["tiny"]
        assert library.models() == []
    manifest.unlink()
    with pytest.raises(BadFile, match="is not a model"):
        library.installed("tiny")


def test_a_full_disk_is_said_with_both_figures(tmp_path: Path) -> None:
    with pytest.raises(NoSpace, match="are free") as caught:
        need_space(tmp_path, 2**62, "this")
    assert caught.value.numbers["needed_bytes"] > 2**62


def test_a_state_directory_that_cannot_be_made_is_an_error_with_a_next_step(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises((UsageError, NotAllowed)) as caught, Library(blocked / "state").staging("tiny"):
        pass
    assert isinstance(caught.value, HomeboxError)
    assert caught.value.hint


# ---- root, for the account of the service

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root works in somebody else's directory")
NOBODY = 65534


@pytest.fixture
def of_nobody(library: Library, tmp_path: Path) -> Library:
    library.root.mkdir(parents=True)
    for folder in (library.root, library.root.parent):
        os.chown(folder, NOBODY, NOBODY)
    assert tmp_path.stat().st_mode & 0o022 == 0
    return library


@needs_root
def test_root_puts_a_model_together_where_the_account_cannot_reach(
    of_nobody: Library, gguf_file: Path
) -> None:
    with of_nobody.staging("tiny") as staging:
        own = [folder for folder in staging.parents if folder.stat().st_uid == NOBODY]
        assert own == [] and staging.parent.stat().st_mode & 0o077 == 0
    made = adopt(of_nobody, gguf_file, "tiny")
    linked = {path for path in made.iterdir() if path.stat().st_nlink > 1}  # root's own file, under two names
    assert {path.stat().st_uid for path in {made, *made.iterdir()} - linked} == {NOBODY}
    assert of_nobody.verify("tiny").name == "tiny"
    assert not staging.parent.exists()


@needs_root
def test_root_installs_and_removes_nothing_through_a_link_of_the_account(
    of_nobody: Library, gguf_file: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    (precious / "tiny").mkdir(parents=True)
    of_nobody.root.rmdir()
    of_nobody.root.symlink_to(precious)
    for change in (lambda: adopt(of_nobody, gguf_file, "small"), lambda: of_nobody.remove("tiny")):
        with pytest.raises(BadFile, match="is a link"):
            change()
    assert [path.name for path in precious.iterdir()] == ["tiny"]
