"""What does the model read of a path, and which of it has the engine computed before?

Pure: from messages as they are stored to messages that a template can render, and to the tokens of the last answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from homebox.daemon.chats.tokens import computed
from homebox.daemon.chats.tree import Said
from homebox.text.join import Computed
from homebox.wire.requests import Message


def messages(system: str | None, path: Sequence[Said], text: str | None = None) -> list[Message]:
    """The path as strict templates want it, with new words at its end."""
    said = [Message("system", system)] if system is not None else []
    said += [Message("user" if each.role == "user" else "assistant", each.text) for each in path]
    if text is not None:
        said.append(Message("user", text))
    return alternating(said)


def alternating(messages: Sequence[Message]) -> list[Message]:
    """User and assistant in turn. An answer that was stopped before its first word is left out, and what the same side
    said twice in a row becomes one message."""
    out: list[Message] = []
    for message in messages:
        if message.role == "assistant" and not message.content:
            continue
        if out and out[-1].role == message.role:
            out[-1] = Message(message.role, f"{out[-1].content}\n\n{message.content}")
        else:
            out.append(message)
    return out


def known(path: Sequence[Said], model: str) -> tuple[str | None, Computed | None]:
    """The last answer on the path that this model gave, by its id, and what the engine computed for it."""
    answers = {each.id: each.ids for each in path if each.ids is not None and each.model == model}
    last = next(reversed(answers), None)
    if last is None:
        return None, None
    prompt, own = computed(answers, last)
    return (last, Computed([*prompt, *own], len(prompt))) if prompt else (None, None)
