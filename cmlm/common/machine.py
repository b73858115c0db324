"""The machine that a process runs on."""

import functools
import math
import os

# The limit of a container, as Linux shows it inside: of cgroup 2, and of cgroup 1.
_LIMIT = "/sys/fs/cgroup/cpu.max"
_LIMIT_OF_1 = "/sys/fs/cgroup/cpu/cpu.cfs_{}_us"
_BFLOAT16_INSTRUCTIONS = frozenset({"avx512_bf16", "amx_bf16"})


def processors() -> int:
    """The number of processors that this process may use, in its container."""
    if hasattr(os, "sched_getaffinity"):
        found = len(os.sched_getaffinity(0))
    else:
        found = os.cpu_count() or 1
    return min(found, _limit() or found)


@functools.cache
def _limit() -> int | None:
    """The processors that a container may use, rounded up; None without a limit."""
    try:
        if os.path.exists(_LIMIT):
            # Two numbers, or `max` and a number.
            quota, period = map(int, _read(_LIMIT).split())
        else:
            # -1 is no limit.
            quota, period = (
                int(_read(_LIMIT_OF_1.format(name))) for name in ("quota", "period")
            )
        return math.ceil(quota / period) if quota > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


def has_bfloat16() -> bool:
    """Whether the processor has instructions for bfloat16."""
    return bool(_BFLOAT16_INSTRUCTIONS & cpu_flags())


@functools.cache
def cpu_flags() -> frozenset[str]:
    """The processor's features as Linux names them on x86; none on other systems."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            # All processors have the same; the file of many is long.
            flags = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return frozenset()
    return frozenset(flags.split())
