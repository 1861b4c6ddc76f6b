"""How busy is the machine's accelerator, or its processor where there is none?

NVML through pynvml where an NVIDIA GPU is there and used, sysfs for AMD's (`amd.py`), else the engine process's share of
all cores and its resident memory. Blocking reads of a millisecond or so, so callers sample in a thread. A figure that
cannot be had is None.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import psutil
import pynvml

from homebox.daemon.amd import AmdGpus
from homebox.wire.events import Device


class Devices:
    """Keeps handles between samples. Not for two threads at once."""

    def __init__(self, root: Path = Path("/")) -> None:
        """`root`: where sysfs is."""
        self._gpus: list[Any] | None = None
        self._driver = ""
        self._amd = AmdGpus(root)
        self._process: psutil.Process | None = None
        self._cpu_name = _cpu_name()

    def sample(self, engine_pid: int | None, engine_device: str | None) -> tuple[Device, ...]:
        """`engine_device` as its Ready frame names it; None before that, when a GPU is shown if there is one."""
        if engine_device is None or not engine_device.startswith("cpu"):
            if gpus := self._gpu_handles():
                return tuple(_gpu(handle, self._driver) for handle in gpus)
            if found := self._amd.sample():
                return found
        return (self._cpu(engine_pid),)

    def _gpu_handles(self) -> list[Any]:
        if self._gpus is None:
            self._gpus = []
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlInit()
                self._gpus = [
                    pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())
                ]
                self._driver = _words(pynvml.nvmlSystemGetDriverVersion())
        return self._gpus

    def _cpu(self, pid: int | None) -> Device:
        util = resident = None
        with contextlib.suppress(psutil.Error):
            if pid is None:
                self._process = None
            elif self._process is None or self._process.pid != pid:
                self._process = psutil.Process(pid)
                self._process.cpu_percent()  # the first reading has nothing to compare with
                resident = self._process.memory_info().rss
            else:
                util = self._process.cpu_percent() / (psutil.cpu_count() or 1)
                resident = self._process.memory_info().rss
        return Device(
            kind="cpu",
            name=self._cpu_name,
            util_percent=util,
            memory_used_bytes=resident,
            memory_total_bytes=psutil.virtual_memory().total,
        )


def _gpu(handle: Any, driver: str) -> Device:
    def read(function: Any, *args: Any) -> Any:
        try:
            return function(handle, *args)
        except pynvml.NVMLError:
            return None

    # Of a GPU that is cut into instances NVML knows no utilisation, and some drivers then say 0.
    cut = read(pynvml.nvmlDeviceGetMigMode)
    rates = None if cut and cut[0] else read(pynvml.nvmlDeviceGetUtilizationRates)
    memory = read(pynvml.nvmlDeviceGetMemoryInfo)
    power_mw = read(pynvml.nvmlDeviceGetPowerUsage)
    limit_mw = read(pynvml.nvmlDeviceGetEnforcedPowerLimit)
    temperature = read(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU)
    return Device(
        kind="gpu",
        name=_words(read(pynvml.nvmlDeviceGetName) or "GPU"),
        util_percent=float(rates.gpu) if rates else None,
        memory_used_bytes=memory.used if memory else None,
        memory_total_bytes=memory.total if memory else None,
        power_w=power_mw / 1000 if power_mw is not None else None,
        temperature_c=temperature,
        power_limit_w=limit_mw / 1000 if limit_mw is not None else None,
        clock_mhz=read(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
        fan_percent=read(pynvml.nvmlDeviceGetFanSpeed),
        driver=f"NVIDIA {driver}".strip(),
    )


def _words(said: str | bytes) -> str:
    """Older versions of the library give bytes."""
    return said if isinstance(said, str) else said.decode("utf-8", "replace")


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "CPU"
