"""One whole benchmark of one server: find out what it is, warm it up, measure, and write down under which conditions."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from pathlib import Path
from typing import Any

import psutil

import homebox
from homebox.bench.client import Client, Target, connect
from homebox.bench.load import Load, Step, measure, warm_up
from homebox.bench.prompts import Prompts
from homebox.bench.results import Report
from homebox.bench.watch import watching
from homebox.client.settings import shown
from homebox.errors import HomeboxError


async def bench(target: Target, load: Load, model: str | None, step: Step) -> Report:
    """Raises HomeboxError: the first of what kept any request from its answer."""
    try:
        async with connect(target) as client:
            return await _measured(client, load, model, step)
    except* HomeboxError as group:
        raise _first(group) from None


async def _measured(client: Client, load: Load, model: str | None, step: Step) -> Report:
    step("asking what the server is", 0, 0)
    await client.learn(model)
    health = await client.json("/health")
    ours = isinstance(health, dict) and "state" in health
    server = await _server(client, health if ours else None)
    notes = _notes(client, health if ours else {})
    prompts = Prompts(load.seed)
    async with watching(client, ours=ours) as watch:
        step("warming up", 0, 0)
        await warm_up(client, load, prompts)
        rows = await measure(client, watch, load, prompts, step)
    if short := [row for row in rows if row.median.tokens < row.median.asked_tokens]:
        worst = min(row.median.tokens / row.median.asked_tokens for row in short)
        notes.append(
            f"the server ended answers before their length ({100 * worst:.0f}% of the tokens at worst); "
            "the figures are of the tokens that came"
        )
    return Report(
        homebox=homebox.__version__,
        at=time.time(),
        machine=machine(),
        server=server,
        load=_load(load),
        rows=rows,
        notes=notes,
    )


def machine() -> dict[str, Any]:
    """Where this client runs, which is where the server runs, too, unless it is elsewhere."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": _cpu_name(),
        "cores": usable,
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


async def _server(client: Client, health: dict[str, Any] | None) -> dict[str, Any]:
    dialect = client.dialect
    found: dict[str, Any] = {
        "place": shown(client.target.place),
        "model": dialect.model,
        "api": "chat completions" if dialect.chat else "completions",
        "ignores_end_tokens": dialect.ignore_eos,
        "tokens_counted_by": dialect.counted_by,
    }
    if health is not None:
        known = ("version", "device", "quantisation", "engine")
        return found | {"name": "homebox"} | {name: health[name] for name in known if health.get(name)}
    version = await client.json("/version")  # vLLM and some others
    if isinstance(version, dict) and version.get("version"):
        found["version"] = str(version["version"])
    props = await client.json("/props")  # llama.cpp
    if isinstance(props, dict) and props.get("build_info"):
        found["version"] = str(props["build_info"])
    return found | {"name": client.server}


def _notes(client: Client, health: dict[str, Any]) -> list[str]:
    notes = []
    if others := (health.get("running") or 0) + (health.get("waiting") or 0):
        notes.append(f"{others} other answers were under way at the start: the figures are lower for it")
    if not client.dialect.ignore_eos:
        notes.append("the server does not take ignore_eos: it ends an answer where the model does")
    if not client.dialect.usage:
        notes.append("the server does not say how many tokens it made: deliveries were counted")
    return notes


def _load(load: Load) -> dict[str, Any]:
    return {
        "streams": list(load.streams),
        "rounds": load.rounds,
        "max_tokens": load.max_tokens,
        "prompt_tokens": load.prompt_tokens,
        "lengths": load.lengths,
        "arrivals": load.arrivals,
        "ways": list(load.ways),
        "seed": load.seed,
        "temperature": 0,
    }


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _first(group: BaseExceptionGroup[Any]) -> HomeboxError:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
