"""`homebox serve`: run the daemon in the foreground. Reads the flags, starts the engine's process, and leaves everything
else to `daemon.serve`: the engine reads torch from the disk while the daemon reads its own parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from homebox.client.sanitise import clean

if TYPE_CHECKING:
    from homebox.config import Settings


def serve(
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="Read this file, not /etc/homebox.")
    ] = None,
    socket: Annotated[str | None, typer.Option("--socket", metavar="PATH", help="The Unix socket.")] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Open TCP, too; a key must exist.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="An installed model.")] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, or cuda:1 of several.")
    ] = None,
    attention: Annotated[
        Literal["auto", "own"] | None,
        typer.Option("--attention", metavar="auto|own", help="On a GPU: a library's, if faster, or our own."),
    ] = None,
    kv_memory: Annotated[
        str | None, typer.Option("--kv-memory", metavar="SIZE", help='Memory for conversations: "2GiB".')
    ] = None,
    kv_host_memory: Annotated[
        str | None,
        typer.Option("--kv-host-memory", metavar="SIZE", help="Host memory for conversations that rest."),
    ] = None,
    kv_type: Annotated[
        Literal["auto", "bf16", "int8", "fp8"] | None,
        typer.Option(
            "--kv-type",
            metavar="auto|bf16|int8|fp8",
            help="Keys and values, on a GPU: int8 and fp8 take half the memory.",
        ),
    ] = None,
    quantize: Annotated[
        Literal["auto", "none", "int8", "int4", "fp8"] | None,
        typer.Option(
            "--quantize",
            metavar="auto|none|int8|int4|fp8",
            help="Weights as the file has them, unrounded, or in so many bits.",
        ),
    ] = None,
    max_running: Annotated[
        int | None, typer.Option("--max-running", metavar="N", help="Answers written at once.")
    ] = None,
    max_chunk_tokens: Annotated[
        int | None, typer.Option("--max-chunk-tokens", metavar="N", help="Prompt tokens a step may read.")
    ] = None,
    log_format: Annotated[
        Literal["text", "json"] | None,
        typer.Option("--log-format", metavar="text|json", help="How lines on standard error look."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check the configuration and the model, then leave.")
    ] = False,
) -> None:
    """Run the daemon: it answers on a socket at once and loads the model meanwhile.

    Ctrl-C lets running answers finish and leaves; a second Ctrl-C leaves at once.

    Examples:

    \b
      homebox serve
      homebox serve --model smollm2-135m --max-running 8
      homebox serve --listen 0.0.0.0:11480
    """
    from homebox import config as configuration

    path = Path(config) if config is not None else None
    flags = {
        "socket": socket,
        "listen": listen,
        "model": model,
        "device": device,
        "attention": attention,
        "kv_memory": kv_memory,
        "kv_host_memory": kv_host_memory,
        "kv_type": kv_type,
        "quantize": quantize,
        "max_running": max_running,
        "max_chunk_tokens": max_chunk_tokens,
        "log_format": log_format,
    }
    settings = configuration.load(flags, config=path).settings
    if not check:
        import asyncio
        import faulthandler

        faulthandler.enable()  # a watchdog's SIGABRT leaves the stack that stood still
        asyncio.run(_serve(settings, lambda: configuration.load(flags, config=path).settings))
        return
    from homebox.daemon import logs
    from homebox.daemon import serve as daemon
    from homebox.daemon.app import build

    logs.configure(settings.log_format)
    state = configuration.state_dir(settings)
    daemon.check(settings, state)
    build(settings, state)
    typer.echo(clean(f"ok: model {settings.model}, socket {configuration.socket_path(settings)}"))


async def _serve(settings: Settings, reread: Callable[[], Settings]) -> None:
    from homebox.daemon.engine_process import WORKER, EngineProcess

    early = await EngineProcess.spawn(WORKER)
    try:
        from homebox.daemon import logs, serve

        logs.configure(settings.log_format)
        await serve.run(settings, early=early, reread=reread)
    finally:
        await early.gone()
