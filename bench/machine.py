"""The measuring machine: its description, its load, and the energy that it reports."""

import importlib
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

NOT_MEASURED = "not measured"
_RAPL = Path("/sys/class/powercap")


def machine() -> dict[str, Any]:
    """CPU, usable cores, load, system and Python; `lscpu` is that command's answer, None where it is missing."""
    return {
        "cpu": _cpu_model(),
        "cores": allowed_cores(),
        "load_average": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "lscpu": _lscpu(),
    }


def allowed_cores() -> int:
    """Cores that this process may run on, without regard to quotas."""
    return len(os.sched_getaffinity(0))


class EnergyMeter:
    """Joules of GPUs (NVML) and CPU packages (RAPL) between two readings, by source; empty if neither reports any.

    GPU power is sampled at each reading if the card has no energy counter.
    """

    def __init__(self) -> None:
        self._gpus = _gpu_handles()
        self._packages = [path for path in sorted(_RAPL.glob("intel-rapl:?")) if os.access(path / "energy_uj", os.R_OK)]
        self._before = self._read()
        self._began = time.monotonic()

    def joules(self) -> dict[str, float] | str:
        """Joules since the meter was made, or `not measured`."""
        now = self._read()
        if not now:
            return NOT_MEASURED
        return {source: self._difference(source, value) for source, value in now.items()}

    def _difference(self, source: str, value: float) -> float:
        spent = value - self._before[source]
        if spent < 0:  # a package's counter wraps around
            spent += float((_RAPL / source / "max_energy_range_uj").read_text()) / 1e6
        return spent

    def _read(self) -> dict[str, float]:
        found = {path.name: float((path / "energy_uj").read_text()) / 1e6 for path in self._packages}
        for index, (library, handle) in enumerate(self._gpus):
            found[f"gpu{index}"] = library.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
        return found


def _gpu_handles() -> list[tuple[Any, Any]]:
    try:
        nvml: Any = importlib.import_module("pynvml")  # from the optional package nvidia-ml-py

        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        for handle in handles:
            nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception:  # noqa: BLE001  no package, no driver, no counter: each raises its own error type
        return []
    return [(nvml, handle) for handle in handles]


def _lscpu() -> dict[str, str] | None:
    answer = _output("lscpu")
    if answer is None:
        return None
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in answer.splitlines())}


def _output(*command: str) -> str | None:
    try:
        environment = os.environ | {"LC_ALL": "C"}
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
