"""What can go wrong, as one tree: every error a person can meet, with its exit code and its HTTP status.

Raised anywhere; turned into words exactly once, at the edge (the CLI's last handler, the daemon's middleware). An
error carries a message that says what happened with the numbers, and a hint that says the next step. It knows no
transport: `as_dict` and `from_dict` are what travels between processes.
"""

from __future__ import annotations

from typing import Any, ClassVar


class HomeboxError(Exception):
    """The root. `param` names the request field at fault; `retry_after_s` says when trying again makes sense."""

    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        numbers: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.param = param
        self.retry_after_s = retry_after_s
        self.numbers = numbers or {}

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

    def as_dict(self) -> dict[str, Any]:
        """The form that crosses a process border; `from_dict` is its inverse."""
        out: dict[str, Any] = {"code": self.code, "message": self.message}
        for name in ("hint", "param", "retry_after_s"):
            if getattr(self, name) is not None:
                out[name] = getattr(self, name)
        if self.numbers:
            out["numbers"] = self.numbers
        return out


class UsageError(HomeboxError):
    """A command line or configuration that cannot be meant."""

    exit_code = 2
    http_status = 400
    code = "usage_error"


class InvalidRequest(HomeboxError):
    """A request field with an impossible value; `param` names it."""

    exit_code = 2
    http_status = 400
    code = "invalid_request"


class WrongMediaType(InvalidRequest):
    """A body that is not what the route reads."""

    http_status = 415
    code = "unsupported_media_type"


class DaemonUnreachable(HomeboxError):
    """Nobody answers on the socket."""

    exit_code = 3
    http_status = 503
    code = "daemon_unreachable"


class TimedOut(HomeboxError):
    """The caller's own deadline passed."""

    exit_code = 4
    http_status = 504
    code = "timed_out"


class Busy(HomeboxError):
    """Refused for now: a full queue, a limit reached, a model that is loading. `retry_after_s` says when."""

    exit_code = 5
    http_status = 429
    code = "busy"


class LimitReached(Busy):
    """A limit of this person: too much at once, in this minute, today, or at this hour. `numbers` say which."""

    code = "rate_limit_exceeded"


class Unavailable(HomeboxError):
    """The daemon answers, its engine does not (yet, or any more)."""

    exit_code = 5
    http_status = 503
    code = "engine_unavailable"


class Paused(Unavailable):
    """Somebody has taken the machine for something else; `retry_after_s` says for how long, where that is known."""

    code = "paused"


class DeviceMissing(Unavailable):
    """The device that the settings name is not there (yet)."""

    code = "device_missing"


class KernelsMissing(Unavailable):
    """The native kernels cannot be built or loaded on this machine; the hint says what would help."""

    code = "kernels_missing"


class OutOfMemory(Unavailable):
    """A device has no room for what is to be computed, in whatever pieces."""

    code = "out_of_memory"


class NotFound(HomeboxError):
    """No such model, chat, turn or stream."""

    exit_code = 6
    http_status = 404
    code = "not_found"


class ModelNotFound(NotFound):
    """No such model in the library, or not the one that is loaded."""

    code = "model_not_found"


class NotAllowed(HomeboxError):
    """Known, and not permitted."""

    exit_code = 7
    http_status = 403
    code = "not_allowed"


class Unauthenticated(HomeboxError):
    """No key, or one that opens nothing."""

    exit_code = 7
    http_status = 401
    code = "invalid_api_key"


class ContextLengthExceeded(HomeboxError):
    """The prompt is longer than the model's context, or than the memory for it; both counts are in the message."""

    exit_code = 8
    http_status = 400
    code = "context_length_exceeded"


class EngineFailed(HomeboxError):
    """The engine or the model failed while answering."""

    http_status = 500
    code = "engine_failed"


class BadFile(HomeboxError):
    """A model file that is damaged, hostile, or of a kind we do not read."""

    exit_code = 2
    http_status = 400
    code = "bad_file"


class FetchFailed(HomeboxError):
    """A download that did not arrive whole; what came is kept, the same command goes on from there."""

    exit_code = 1
    http_status = 502
    code = "fetch_failed"


class UnusableFile(HomeboxError):
    """A file of the daemon's own that cannot be used: damaged, or written by a newer version. It is left as it is."""

    http_status = 500
    code = "unusable_file"


class NoMemory(HomeboxError):
    """A model, or what is asked of it, is larger than the memory that is free; the figures are in the message."""

    http_status = 507
    code = "no_memory"


class NoSpace(HomeboxError):
    """The disk is too full for what is to come; both figures are in the message."""

    http_status = 507
    code = "no_space"


def _tree(cls: type[HomeboxError]) -> dict[str, type[HomeboxError]]:
    found = {cls.code: cls}
    for sub in cls.__subclasses__():
        found |= _tree(sub)
    return found


def from_dict(data: dict[str, Any]) -> HomeboxError:
    """Rebuild an error that crossed a process border; an unknown code becomes the root, never a KeyError."""
    cls = _tree(HomeboxError).get(str(data.get("code")), HomeboxError)
    return cls(
        str(data.get("message", "unknown error")),
        hint=data.get("hint"),
        param=data.get("param"),
        retry_after_s=data.get("retry_after_s"),
        numbers=data.get("numbers"),
    )
