"""Is there something to compute on, and room on it? The GPU and its driver, who holds its memory, the machine's own
memory, and its clock."""

from __future__ import annotations

import stat
import time
from pathlib import Path
from typing import Any

from homebox.cli.doctor.seen import Finding, Machine, Seen

_GIB = 2**30
MIN_MEMORY_BYTES = 1 * _GIB
_NVIDIA, _AMD = "0x10de", "0x1002"
_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
_NODE_FIX = {
    "/dev/nvidiactl": "sudo nvidia-modprobe",
    "/dev/nvidia-uvm": "sudo nvidia-modprobe -u -c=0   (nvidia-persistenced does it at boot)",
}


def driver(seen: Seen) -> Finding:
    """An NVIDIA GPU needs its driver, and the driver its device nodes."""
    machine = seen.machine
    cards = _cards(machine)
    loaded = machine.at("/proc/driver/nvidia/version").exists()
    if not loaded and _NVIDIA not in cards:
        others = "an AMD GPU, which this version does not use" if _AMD in cards else "no NVIDIA GPU"
        return Finding("driver", True, f"{others}: the engine computes on the CPU")
    if not loaded:
        return Finding(
            "driver",
            False,
            "there is an NVIDIA GPU, and its driver is not loaded",
            "Install the driver (Debian: nvidia-driver, Ubuntu: ubuntu-drivers install), then restart the machine.",
        )
    nodes = sorted(machine.at("/dev").glob("nvidia[0-9]*"))
    if not nodes:
        return Finding(
            "driver", False, "the driver is loaded, and there is no /dev/nvidia0", _NODE_FIX[_NODES[0]]
        )
    for name in _NODES:
        if not machine.at(name).exists():
            return Finding("driver", False, f"the driver is loaded, and {name} is missing", _NODE_FIX[name])
    closed = [node for node in [*nodes, *map(machine.at, _NODES)] if not _open(node)]
    if closed:
        return Finding(
            "driver", False, f"{closed[0]} is closed to the service's account", f"sudo chmod 0666 {closed[0]}"
        )
    return Finding(
        "driver",
        True,
        f"NVIDIA driver {_version(machine)}, {len(nodes)} GPU{'s' * (len(nodes) > 1)}, all device nodes",
    )


def _cards(machine: Machine) -> set[str]:
    """The vendors of this machine's display controllers (PCI class 03)."""
    found = set()
    for folder in machine.at("/sys/bus/pci/devices").glob("*"):
        try:
            if (folder / "class").read_text().startswith("0x03"):
                found.add((folder / "vendor").read_text().strip())
        except OSError:
            continue
    return found


def _open(node: Path) -> bool:
    wanted = stat.S_IROTH | stat.S_IWOTH
    return node.stat().st_mode & wanted == wanted


def _version(machine: Machine) -> str:
    words = machine.at("/proc/driver/nvidia/version").read_text().split()
    return next((word for word in words if word[:1].isdigit() and "." in word), "of unknown version")


def gpu(seen: Seen) -> Finding:
    """Free memory of each GPU, and who holds the rest."""
    library = seen.machine.nvml()
    if library is None:
        return Finding("gpu", True, "no GPU that could be asked")
    said, full = [], []
    for index in range(library.nvmlDeviceGetCount()):
        handle = library.nvmlDeviceGetHandleByIndex(index)
        memory = library.nvmlDeviceGetMemoryInfo(handle)
        holders = _holders(seen, library, handle)
        held = f", held by {', '.join(holders)}" if holders else ""
        said.append(f"GPU {index}: {memory.free / _GIB:.1f} of {memory.total / _GIB:.1f} GiB free{held}")
        if memory.free < MIN_MEMORY_BYTES and not seen.ready:
            full.append(holders)
    if not full:
        return Finding("gpu", True, "; ".join(said))
    who = ", ".join(name for holders in full for name in holders) or "whatever uses the GPU"
    return Finding("gpu", False, "; ".join(said), f"End {who}, or use a smaller model.")


def _holders(seen: Seen, library: Any, handle: Any) -> list[str]:
    """`blender (pid 41, 3.2 GiB)` for each process but our engine's, the largest first."""
    found: dict[int, int] = {}
    for ask in (library.nvmlDeviceGetComputeRunningProcesses, library.nvmlDeviceGetGraphicsRunningProcesses):
        try:
            running = ask(handle)
        except library.NVMLError:
            continue
        for process in running:
            found[process.pid] = max(found.get(process.pid, 0), process.usedGpuMemory or 0)
    ours = (seen.health or {}).get("engine_pid")
    largest = sorted(found.items(), key=lambda item: -item[1])
    return [
        f"{_process(seen.machine, pid)} (pid {pid}, {size / _GIB:.1f} GiB)"
        for pid, size in largest
        if pid != ours
    ]


def _process(machine: Machine, pid: int) -> str:
    try:
        return machine.at(f"/proc/{pid}/comm").read_text().strip() or "a process"
    except OSError:
        return "a process"


def memory(seen: Seen) -> Finding:
    import psutil

    now = psutil.virtual_memory()
    found = f"{now.available / _GIB:.1f} of {now.total / _GIB:.1f} GiB available"
    enough = seen.ready or now.available >= MIN_MEMORY_BYTES
    return Finding("memory", enough, found, "" if enough else "Close what else runs, or use a smaller model.")


def clock(seen: Seen) -> Finding:
    """Hours, keys that expire and the record of who did what are as right as the clock is."""
    from homebox.cli.doctor.service import where_installed

    now, built = seen.machine.now(), where_installed().stat().st_mtime
    said = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    right = "sudo timedatectl set-ntp true   (or set it by hand: sudo date -s ...)"
    if now < built - 86400:
        return Finding("clock", False, f"it says {said}, which is before this program was installed", right)
    synchronised = (
        seen.machine.run("timedatectl", "show", "-p", "NTPSynchronized", "--value")
        if seen.machine.has_systemd
        else None
    )
    if synchronised is not None and synchronised.strip() == "no":
        return Finding(
            "clock", True, f"{said}; not kept right by the network", f"To have it kept right: {right}"
        )
    return Finding("clock", True, said)
