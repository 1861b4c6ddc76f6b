"""What turns large texts into tokens, away from everybody else's next token?

A process of its own, `python -m homebox.text.worker MODEL_DIR`: it reads requests from standard input and writes
answers to standard output, one at a time, until its input ends. A template or a tokeniser that takes for ever, or all
the memory there is, is killed here and hurts one request; `daemon/text_process.py` is who starts and kills it. Frames
are four bytes little-endian length, then msgpack.
"""

from __future__ import annotations

import resource
import struct
import sys
from pathlib import Path
from typing import BinaryIO

import msgspec

from homebox.errors import HomeboxError, InvalidRequest
from homebox.text.join import Computed
from homebox.text.tokens import Tokenizer

MAX_MEMORY_BYTES = 4 * 2**30
HEADER = struct.Struct("<I")


class Render(msgspec.Struct, frozen=True, tag="render"):
    messages: list[dict[str, str]]
    continue_last: bool
    computed: Computed | None = None


class Encode(msgspec.Struct, frozen=True, tag="encode"):
    text: str


class Made(msgspec.Struct, frozen=True, tag="made"):
    tokens: list[int]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    error: dict[str, object]  # as `HomeboxError.as_dict`


def frame(message: Render | Encode | Made | Failed) -> bytes:
    body = msgspec.msgpack.encode(message)
    return HEADER.pack(len(body)) + body


def serve(tokenizer: Tokenizer, source: BinaryIO, sink: BinaryIO) -> None:
    """Answer until `source` ends."""
    decoder = msgspec.msgpack.Decoder(Render | Encode)
    while header := source.read(HEADER.size):
        (size,) = HEADER.unpack(header)
        sink.write(frame(_answer(tokenizer, decoder.decode(source.read(size)))))
        sink.flush()


def _answer(tokenizer: Tokenizer, asked: Render | Encode) -> Made | Failed:
    try:
        if isinstance(asked, Render):
            made = tokenizer.render(
                asked.messages, continue_last=asked.continue_last, computed=asked.computed
            )
            return Made(made)
        return Made(tokenizer.encode(asked.text))
    except HomeboxError as error:
        return Failed(error.as_dict())
    except MemoryError:
        return Failed(InvalidRequest("turning this text into tokens needs too much memory").as_dict())


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    serve(Tokenizer.load(Path(sys.argv[1])), sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
