"""The machine that a process runs on."""

import functools
import os

_BFLOAT16_INSTRUCTIONS = frozenset({"avx512_bf16", "amx_bf16"})


def processors() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
