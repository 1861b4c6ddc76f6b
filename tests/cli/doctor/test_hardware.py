"""Does the doctor see a GPU that cannot be used, memory that is taken, and a clock that is wrong?"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from homebox.cli.doctor import hardware

from .conftest import MadeUp

NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0")


def card(it: MadeUp, vendor: str, kind: str = "0x030000") -> None:
    it.has("/sys/bus/pci/devices/0000:01:00.0/vendor", f"{vendor}\n")
    it.has("/sys/bus/pci/devices/0000:01:00.0/class", f"{kind}\n")


def driven(it: MadeUp, without: str = "") -> None:
    it.has("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Kernel Module  570.1.2  Release\n")
    for node in NODES:
        if node != without:
            it.has(node, mode=0o666)


def test_no_gpu_is_no_fault(it: MadeUp) -> None:
    found = it.find(hardware.driver)
    assert found.ok and "no NVIDIA GPU" in found.found
    card(it, "0x1002")
    assert "AMD" in it.find(hardware.driver).found
    card(it, "0x10de", "0x020000")  # a network card of the same maker
    assert it.find(hardware.driver).ok


def test_a_gpu_without_its_driver_is_found(it: MadeUp) -> None:
    card(it, "0x10de")
    found = it.find(hardware.driver)
    assert not found.ok and "driver is not loaded" in found.found and "Install the driver" in found.fix


def test_a_driver_with_all_its_nodes_is_well(it: MadeUp) -> None:
    card(it, "0x10de")
    driven(it)
    found = it.find(hardware.driver)
    assert found.ok and found.found == "NVIDIA driver 570.1.2, 1 GPU, all device nodes"


@pytest.mark.parametrize(
    ("missing", "fix"),
    [("/dev/nvidia-uvm", "nvidia-modprobe -u"), ("/dev/nvidiactl", "nvidia-modprobe"), ("/dev/nvidia0", "nvidia-modprobe")],
)  # fmt: skip
def test_a_missing_device_node_is_named_with_what_makes_it(it: MadeUp, missing: str, fix: str) -> None:
    driven(it, without=missing)
    found = it.find(hardware.driver)
    assert not found.ok and missing in found.found and fix in found.fix


def test_a_closed_device_node_is_found(it: MadeUp) -> None:
    driven(it)
    it.has("/dev/nvidia0", mode=0o600)
    found = it.find(hardware.driver)
    assert not found.ok and "closed" in found.found and "chmod 0666" in found.fix


class Nvml:
    """One GPU of 8 GiB as NVIDIA's library would show it."""

    class NVMLError(Exception):
        pass

    def __init__(self, free_gib: float, **holders: float) -> None:
        self._free, self._holders = free_gib, holders

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(free=self._free * 2**30, total=8 * 2**30)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> Any:
        return [
            SimpleNamespace(pid=int(name[1:]), usedGpuMemory=size * 2**30)
            for name, size in self._holders.items()
        ]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: int) -> Any:
        raise self.NVMLError


def test_who_holds_the_memory_of_a_full_gpu_is_named(it: MadeUp) -> None:
    it.has("/proc/41/comm", "blender\n")
    it.is_(nvml=lambda: Nvml(0.5, p40=1.0, p41=6.5))
    found = it.find(hardware.gpu)
    assert not found.ok
    assert (
        found.found
        == "GPU 0: 0.5 of 8.0 GiB free, held by blender (pid 41, 6.5 GiB), a process (pid 40, 1.0 GiB)"
    )
    assert found.fix.startswith("End blender (pid 41")


def test_a_gpu_that_our_engine_fills_is_well(it: MadeUp) -> None:
    it.is_(nvml=lambda: Nvml(0.1, p40=7.0))
    it.health = {"state": "ready", "engine_pid": 40}
    found = it.find(hardware.gpu)
    assert found.ok and found.found == "GPU 0: 0.1 of 8.0 GiB free"
    it.health, it.machine = None, it.machine
    it.is_(nvml=lambda: Nvml(4.0))
    assert it.find(hardware.gpu).ok


def test_a_clock_before_the_installation_is_wrong(it: MadeUp) -> None:
    it.is_(now=lambda: 1e9)
    found = it.find(hardware.clock)
    assert not found.ok and "before this program was installed" in found.found and "timedatectl" in found.fix
    it.is_(now=time.time)
    assert it.find(hardware.clock).ok and not it.find(hardware.clock).fix


def test_a_clock_that_nothing_keeps_right_is_advice(it: MadeUp) -> None:
    it.systemd({}, {})
    it.says("timedatectl", "echo no")
    found = it.find(hardware.clock)
    assert found.ok and "timedatectl set-ntp true" in found.fix
    it.says("timedatectl", "echo yes")
    assert not it.find(hardware.clock).fix


def test_memory_is_counted(it: MadeUp, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "GiB available" in it.find(hardware.memory).found
    monkeypatch.setattr(hardware, "MIN_MEMORY_BYTES", 2**60)
    found = it.find(hardware.memory)
    assert not found.ok and "smaller model" in found.fix
    it.health = {"state": "ready"}
    assert it.find(hardware.memory).ok
