"""How does text become tokens, and tokens text, for one model?

Reads what the library installed beside the weights (`tokenizer.json`, `chat_template.jinja`, `manifest.json`); the
daemon is the caller. A control token comes only from the model's own template, never from what a person typed
(`text/typed.py`). It knows nothing of requests, streams or engines: `text/detokenise.py` does the streaming.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from homebox.errors import BadFile, InvalidRequest
from homebox.library.manifest import Manifest
from homebox.library.manifest import read as read_manifest
from homebox.text.join import Computed, shared
from homebox.text.pieces import Pieces, piece_table
from homebox.text.template import ChatTemplate
from homebox.text.typed import Disguise, Marks, characters

TOKENIZER = "tokenizer.json"
TEMPLATE = "chat_template.jinja"

Message = Mapping[str, Any]

# Stands in the text where a control token belongs while the rest is encoded with control tokens switched off.
# Unicode keeps these three code points for a program's own use; whoever types them gets them back as text.
_JOINT = "\ufdd0\ufdd1\ufdd2"


class Tokenizer:
    """One model's tokeniser and chat template. `end_tokens` end an answer; `vocab_size` is the highest id plus one."""

    def __init__(
        self, backend: Backend, pieces: Pieces, template: ChatTemplate | None, manifest: Manifest
    ) -> None:
        self.manifest = manifest
        self.template = template
        self.end_tokens: tuple[int, ...] = tuple(manifest.end_tokens)
        added = backend.get_added_tokens_decoder()
        special = {token.content: (number, token) for number, token in added.items() if token.special}
        self.special_ids = frozenset(number for number, _ in special.values())
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        joint = _JOINT[0], _JOINT[1:]
        literal = [number for part in joint for number in backend.encode(part, add_special_tokens=False).ids]
        backend.add_tokens([AddedToken(_JOINT, normalized=False, special=False)])
        self._joint = backend.token_to_id(_JOINT)
        self._backend = backend
        self._pieces = pieces
        self._marks = Marks(special)
        self._ids_at = {text: [number] for text, (number, _) in special.items()} | {_JOINT: literal}
        self._eats_left = {text for text, (_, token) in special.items() if token.lstrip}
        self._eats_right = {text for text, (_, token) in special.items() if token.rstrip}
        self._control = re.compile("|".join(map(re.escape, [*self._marks.texts, _JOINT])))
        self._no_control = re.compile(re.escape(_JOINT))

    @classmethod
    def load(cls, model_dir: Path) -> Tokenizer:
        """Read an installed model. Raises ModelNotFound without a manifest, BadFile for files that cannot be used."""
        manifest = read_manifest(model_dir)
        path = model_dir / TOKENIZER
        try:
            raw = path.read_bytes()
            pieces = piece_table(msgspec.json.decode(raw, type=dict[str, msgspec.Raw]))
            backend = Backend.from_buffer(raw)
            template = model_dir / TEMPLATE
            source = template.read_text(encoding="utf-8") if template.exists() else None
        except BadFile as error:
            raise BadFile(f"{path}: {error.message}", hint=error.hint) from None
        except Exception as error:  # the tokenizers package raises bare Exception for a file it cannot take
            raise BadFile(f"{path}: {error}", hint=f"homebox models verify {model_dir.name}") from None
        return cls(backend, pieces, ChatTemplate(source) if source is not None else None, manifest)

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Tokens of a plain text, after the model's begin-of-text token where it wants one.

        Control marks in it stay text unless `allow_special`. Raises InvalidRequest for text that is not Unicode.
        """
        ids = self._encode(text, self._control if allow_special else self._no_control)
        bos = self.manifest.bos_token
        if self.manifest.add_bos and bos is not None and ids[:1] != [bos]:
            return [bos, *ids]
        return ids

    def words(self, text: str) -> list[int]:
        """Tokens of a text that goes on after others: nothing is put before it. Raises InvalidRequest."""
        return self._encode(text, self._no_control)

    def render(
        self, messages: Sequence[Message], *, continue_last: bool = False, computed: Computed | None = None
    ) -> list[int]:
        """Tokens of a conversation as the model's template writes it, up to where the answer begins.

        With `continue_last` a last message of the assistant is left open, so that the answer goes on from its text.
        With `computed` the result begins with those very tokens as far as they stand for the same text (`text/join.py`).
        Raises InvalidRequest where the template refuses the messages, or the model has none.
        """
        template = self._template()
        disguise = Disguise(self._marks, characters([list(messages), template.source, _JOINT]))
        chat: list[dict[str, Any]] = disguise.put_on(messages)
        open_end = continue_last and bool(chat) and chat[-1].get("role") == "assistant"
        if not open_end:
            return self._encode(
                self._text(chat, add_generation_prompt=True), self._control, disguise, computed
            )
        if not isinstance(chat[-1].get("content"), str):
            raise InvalidRequest("an assistant message that is to be continued needs text", param="messages")
        end = disguise.private()
        chat[-1]["content"] += end + " "
        before, found, after = self._text(chat, add_generation_prompt=False).rpartition(end)
        if not found:
            raise InvalidRequest(
                "the model's chat template leaves out the last assistant message", param="messages"
            )
        kept = (
            before if after.startswith(" ") else before.rstrip()
        )  # a template that trims would have trimmed this
        return self._encode(kept, self._control, disguise, computed)

    def template_end(self) -> int | None:
        """The control token that the template puts after an assistant's message, where there is one."""
        if self.template is None:
            return None
        said = "\ue000"
        chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": said}]
        try:
            after = self._text(chat, add_generation_prompt=False).rpartition(said)[2]
        except InvalidRequest:
            return None
        mark = self._control.match(after.lstrip())
        return self._ids_at[mark[0]][0] if mark and mark[0] != _JOINT else None

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of some tokens, as it goes on after other text; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes(one, skip_special=skip_special) for one in ids).decode(
            "utf-8", "replace"
        )

    def token_text(self, token: int) -> str:
        """One token's own text, control tokens included; a part of a character shows as U+FFFD."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def token_bytes(self, token: int, *, skip_special: bool = False) -> bytes:
        """One token's bytes: empty for an id the tokeniser has no text for, and for control tokens if skipped."""
        if not 0 <= token < self.vocab_size or (skip_special and token in self.special_ids):
            return b""
        return self._pieces.of(token, self._backend.id_to_token)

    def _template(self) -> ChatTemplate:
        if self.template is None:
            raise InvalidRequest(
                f"the model {self.manifest.name} has no chat template",
                param="messages",
                hint="Use plain completions, or adopt the model again with a chat_template.jinja beside its weights.",
            )
        return self.template

    def _text(self, chat: Sequence[Message], *, add_generation_prompt: bool) -> str:
        names = {"bos_token": self.manifest.bos_token, "eos_token": next(iter(self.end_tokens), None)}
        marks = {name: self.token_text(number) for name, number in names.items() if number is not None}
        variables = {"tools": None, "documents": None} | marks | self.manifest.special_tokens
        return self._template().render(
            variables | {"messages": chat, "add_generation_prompt": add_generation_prompt}
        )

    def _encode(
        self,
        text: str,
        control: re.Pattern[str],
        disguise: Disguise | None = None,
        computed: Computed | None = None,
    ) -> list[int]:
        """Encode with control tokens switched off, a joint in the place of each mark that `control` finds."""
        parts: list[str] = []
        controls: list[list[int]] = []
        start, strip = 0, False
        for mark in control.finditer(text):
            part = text[start : mark.start()]
            part = part.lstrip() if strip else part
            parts.append(part.rstrip() if mark[0] in self._eats_left else part)
            controls.append(self._ids_at[mark[0]])
            start, strip = mark.end(), mark[0] in self._eats_right
        parts.append(text[start:].lstrip() if strip else text[start:])
        if disguise:
            parts = [disguise.take_off(part) for part in parts]
        if computed is None:
            return self._encode_parts(parts, controls)
        try:
            begins, parts, controls = shared(computed, parts, controls, self.token_bytes, self.special_ids)
        except UnicodeEncodeError:  # half of a character: said below
            begins = []
        rest = self._encode_parts(parts, controls)
        # A tokeniser that changes the text on its way in (a space put before it) cannot be joined in mid-text.
        if begins and self._bytes(rest) != self._bytes_of(parts, controls):
            return self._encode(text, control, disguise)
        return [*begins, *rest]

    def _encode_parts(self, parts: Sequence[str], controls: Sequence[Sequence[int]]) -> list[int]:
        try:
            found = self._backend.encode(_JOINT.join(parts), add_special_tokens=False).ids
        except (UnicodeEncodeError, TypeError):
            raise InvalidRequest("the text holds half of a surrogate pair, which is no character") from None
        queue = iter(controls)
        return [one for token in found for one in (next(queue) if token == self._joint else (token,))]

    def _bytes(self, ids: Iterable[int]) -> bytes:
        return b"".join(map(self.token_bytes, ids))

    def _bytes_of(self, parts: Sequence[str], controls: Sequence[Sequence[int]]) -> bytes:
        marks = [*map(self._bytes, controls), b""]
        return b"".join(part.encode() + mark for part, mark in zip(parts, marks, strict=True))
