"""What the C++ kernels are compiled for: an instruction-set level that many CPUs share, so that a library compiled on
one of them runs on another. Determined without a compiler, while a model is loaded.
"""

import platform
from dataclasses import dataclass
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_SAME = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True)
class March:
    """A value of AERIE_MARCH."""

    name: str
    machine: str
    """The value of platform.machine() on Linux."""
    flags: tuple[str, ...]
    """Flags for GCC and Clang, including older versions that do not know the levels by name."""
    features: frozenset[str] = frozenset()
    """Features that a CPU needs, as named in /proc/cpuinfo."""

    @property
    def foreign(self) -> bool:
        return self.machine != this_machine()


def _levels() -> dict[str, March]:
    flags, features, found = ["-march=x86-64"], set[str](), {}
    for name, more_flags, more_features in (
        ("x86-64", "", ""),
        ("x86-64-v2", "sse3 ssse3 sse4.1 sse4.2 popcnt cx16", "pni ssse3 sse4_1 sse4_2 popcnt cx16"),
        ("x86-64-v3", "avx2 fma f16c bmi bmi2 lzcnt movbe", "avx2 fma f16c bmi1 bmi2 abm movbe"),
        ("x86-64-v4", *["avx512f avx512bw avx512cd avx512dq avx512vl"] * 2),
    ):
        flags += [f"-m{flag}" for flag in more_flags.split()]
        features |= set(more_features.split())
        found[name] = March(name, "x86_64", tuple(flags), frozenset(features))
    found["armv8-a"] = March("armv8-a", "aarch64", ("-march=armv8-a",), frozenset({"asimd"}))
    return found


LEVELS = _levels()
"""By name; a machine's lowest level comes first."""


def cpu_features() -> frozenset[str] | None:
    """The features of this CPU; None if the system does not report them."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return None
    own = next((line for line in lines if line.startswith(("flags", "Features"))), None)
    return None if own is None else frozenset(own.partition(":")[2].split())


def cpu_name() -> str:
    """Tells CPUs apart that may differ in speed: what the system says of the first one, but for its current speed."""
    try:
        first = _CPUINFO.read_text().split("\n\n")[0]
    except OSError:
        return platform.processor()
    return "\n".join(line for line in first.splitlines() if "MHz" not in line)


def this_machine() -> str:
    name = platform.machine().lower()
    return _SAME.get(name, name)


def native() -> March:
    """For exactly this CPU."""
    flag = "-march=native" if this_machine() == "x86_64" else "-mcpu=native"
    return March("native", this_machine(), (flag,), cpu_features() or frozenset())


def runnable() -> list[March]:
    """The levels that this CPU supports, the best first; `native` for a CPU that reports no features."""
    features = cpu_features()
    if features is None:
        return [native()]
    own = [level for level in LEVELS.values() if level.machine == this_machine() and level.features <= features]
    return own[::-1] or [native()]


def march_of(name: str) -> March:
    """Raises ValueError for an unknown name."""
    if name == "native":
        return native()
    if name not in LEVELS:
        raise ValueError(f"AERIE_MARCH is {name}; it can be {', '.join(LEVELS)} or native")
    return LEVELS[name]


def lacking(march: March) -> str | None:
    """Why this machine cannot run code compiled for `march`; None if it can."""
    if march.foreign:
        return f"{march.name} is for {march.machine}, and this machine is {this_machine()}"
    features = cpu_features()
    if features is None and march.name != "native":
        return f"whether this CPU can run {march.name} is not known: {_CPUINFO} does not say"
    without = sorted(march.features - (features or march.features))
    return f"this CPU cannot run {march.name}: it lacks {' '.join(without)}" if without else None
