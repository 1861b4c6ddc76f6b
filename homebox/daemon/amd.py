"""How busy is an AMD GPU, as its kernel driver says it in sysfs?

Read from /sys/class/drm/card*/device (amdgpu): busy percent, memory, and the first hwmon below it: power in microwatts,
temperature in millidegrees, clock in hertz, fan in 1/255. No library and no tool is asked; a file that is not there, or
cannot be read, is an unknown figure. Blocking.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from homebox.wire.events import Device

VENDOR = "0x1002"


class AmdGpus:
    """The cards below `root`, looked for once."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._version = root / "proc/sys/kernel/osrelease"
        cards = sorted(
            (root / "sys/class/drm").glob("card*/device"), key=lambda path: _number(path.parent.name)
        )
        self._cards = [
            card
            for card in cards
            if card.parent.name[4:].isdigit()
            and _text(card / "vendor") == VENDOR
            and (card / "gpu_busy_percent").exists()
        ]

    def sample(self) -> tuple[Device, ...]:
        driver = f"amdgpu (Linux {release})" if (release := _text(self._version)) else "amdgpu"
        return tuple(_device(card, driver) for card in self._cards)


def _device(card: Path, driver: str) -> Device:
    sensors = next(iter(sorted((card / "hwmon").glob("hwmon*"))), card / "hwmon")
    memory_used, memory_total = _figure(card / "mem_info_vram_used"), _figure(card / "mem_info_vram_total")
    power = _figure(sensors / "power1_average")
    return Device(
        kind="gpu",
        name=_text(card / "product_name") or "AMD GPU",
        util_percent=_figure(card / "gpu_busy_percent"),
        memory_used_bytes=None if memory_used is None else int(memory_used),
        memory_total_bytes=None if memory_total is None else int(memory_total),
        power_w=_scaled(power if power is not None else _figure(sensors / "power1_input"), 1e6),
        power_limit_w=_scaled(_figure(sensors / "power1_cap"), 1e6),
        temperature_c=_scaled(_figure(sensors / "temp1_input"), 1e3),
        clock_mhz=_scaled(_figure(sensors / "freq1_input"), 1e6),
        fan_percent=_scaled(_figure(sensors / "pwm1"), 2.55),
        driver=driver,
    )


def _number(name: str) -> int:
    return int(name[4:]) if name[4:].isdigit() else -1


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text().strip()
    return ""


def _figure(path: Path) -> float | None:
    with contextlib.suppress(ValueError):
        return float(_text(path))
    return None


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit
