"""Figures of devices: as the driver says them, in our units, and None for whatever cannot be had."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest

from homebox.daemon.devices import Devices
from homebox.wire.events import Device

GIB = 2**30


class Nvml:
    """pynvml with one GPU; what is missing from `says` raises, as a driver does that does not know it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **says: Any) -> None:
        self.says = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlSystemGetDriverVersion": "580.1",
        } | says
        for name in dir(pynvml):
            if name.startswith(("nvmlDeviceGet", "nvmlInit", "nvmlSystemGet")) and callable(
                getattr(pynvml, name)
            ):
                monkeypatch.setattr(pynvml, name, lambda *args, name=name: self._say(name))

    def _say(self, name: str) -> Any:
        if name not in self.says:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return self.says[name]


WHOLE = {
    "nvmlDeviceGetName": "NVIDIA RTX 4090",
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=74, memory=30),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=18 * GIB, total=24 * GIB),
    "nvmlDeviceGetPowerUsage": 312_000,
    "nvmlDeviceGetEnforcedPowerLimit": 450_000,
    "nvmlDeviceGetTemperature": 67,
    "nvmlDeviceGetClockInfo": 2520,
    "nvmlDeviceGetFanSpeed": 48,
}


@pytest.fixture
def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)


def test_everything_that_nvml_says_is_told_in_our_units(monkeypatch: pytest.MonkeyPatch) -> None:
    Nvml(monkeypatch, **WHOLE)
    assert Devices().sample(os.getpid(), "cuda:0") == (
        Device(
            kind="gpu",
            name="NVIDIA RTX 4090",
            util_percent=74.0,
            memory_used_bytes=18 * GIB,
            memory_total_bytes=24 * GIB,
            power_w=312.0,
            temperature_c=67,
            power_limit_w=450.0,
            clock_mhz=2520,
            fan_percent=48,
            driver="NVIDIA 580.1",
        ),
    )


def test_what_a_gpu_cannot_say_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    Nvml(monkeypatch)
    assert Devices().sample(None, None) == (Device(kind="gpu", name="GPU", driver="NVIDIA 580.1"),)


def test_a_gpu_that_is_cut_into_instances_has_no_utilisation_even_where_its_driver_says_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    zero = SimpleNamespace(gpu=0, memory=0)
    Nvml(monkeypatch, **WHOLE | {"nvmlDeviceGetUtilizationRates": zero, "nvmlDeviceGetMigMode": [1, 1]})
    assert Devices().sample(None, "cuda:0")[0].util_percent is None
    Nvml(monkeypatch, **WHOLE | {"nvmlDeviceGetUtilizationRates": zero, "nvmlDeviceGetMigMode": [0, 0]})
    assert Devices().sample(None, "cuda:0")[0].util_percent == 0.0


def amd_card(root: Path, number: int, **files: str) -> Path:
    card = root / f"sys/class/drm/card{number}/device"
    (card / "hwmon/hwmon3").mkdir(parents=True)
    for name, said in ({"vendor": "0x1002", "gpu_busy_percent": "42"} | files).items():
        (card / name.replace("__", "/hwmon3/")).write_text(f"{said}\n")
    return card


def test_an_amd_gpu_is_read_from_sysfs(no_nvml: None, tmp_path: Path) -> None:
    amd_card(
        tmp_path,
        1,
        product_name="Radeon RX 7900 XTX",
        mem_info_vram_used=str(6 * GIB),
        mem_info_vram_total=str(24 * GIB),
        hwmon__power1_average="210000000",
        hwmon__power1_cap="339000000",
        hwmon__temp1_input="58000",
        hwmon__freq1_input="2304000000",
        hwmon__pwm1="128",
    )
    amd_card(tmp_path, 0, vendor="0x8086")  # somebody else's card
    (tmp_path / "sys/class/drm/card1-DP-1").mkdir()  # a connector, not a card
    (found,) = Devices(tmp_path).sample(None, "cuda:0")
    assert (found.kind, found.name, found.driver) == ("gpu", "Radeon RX 7900 XTX", "amdgpu")
    assert (found.util_percent, found.memory_used_bytes, found.memory_total_bytes) == (
        42.0,
        6 * GIB,
        24 * GIB,
    )
    assert (found.power_w, found.power_limit_w, found.temperature_c) == (210.0, 339.0, 58.0)
    assert found.clock_mhz == 2304.0 and found.fan_percent == pytest.approx(50.2, abs=0.1)


def test_what_an_amd_gpu_does_not_say_is_none(no_nvml: None, tmp_path: Path) -> None:
    amd_card(tmp_path, 0, gpu_busy_percent="nonsense")
    (found,) = Devices(tmp_path).sample(None, "cuda:0")
    assert found == Device(kind="gpu", name="AMD GPU", driver="amdgpu")


def test_an_engine_on_the_cpu_has_the_figures_of_its_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Nvml(monkeypatch, **WHOLE)  # a GPU that is there and not used
    devices = Devices(tmp_path)
    first = devices.sample(os.getpid(), "cpu (2 threads)")[0]
    assert first.kind == "cpu" and first.util_percent is None  # nothing to compare with yet
    sum(range(2_000_000))
    second = devices.sample(os.getpid(), "cpu (2 threads)")[0]
    assert second.util_percent is not None and 0 <= second.util_percent <= 100
    assert second.memory_used_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)
    assert second.memory_total_bytes == psutil.virtual_memory().total


def test_of_an_engine_that_is_gone_nothing_is_known(no_nvml: None, tmp_path: Path) -> None:
    (found,) = Devices(tmp_path).sample(None, None)
    assert (found.kind, found.util_percent, found.memory_used_bytes) == ("cpu", None, None)
