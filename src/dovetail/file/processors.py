"""The processors that a file can hold code for, and their numbers in its code section.

1 to 4 are the levels of x86-64, 5 is the last with AVX512-BF16. Others are ELF's number of the
machine, times 256, and a level.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.errors import InvalidOption
from dovetail.variables import variable

if TYPE_CHECKING:
    from dovetail.ir.target import Target

AARCH64 = 183 << 8 | 1  # any of ARMv8-A with NEON
_LEVELS = {f"x86-64-v{n}": n for n in range(1, 5)}
PROCESSORS = {**_LEVELS, "x86-64-v4-bf16": 5, "armv8-a": AARCH64}
_LEAST = PROCESSORS["x86-64-v3"]  # kernels are made of fused multiply-adds
_NAMES = {number: name for name, number in PROCESSORS.items()}
_FAMILIES = {"x86_64": "x86-64", "amd64": "x86-64", "aarch64": "aarch64", "arm64": "aarch64"}


def processor_name(number: int) -> str:
    """What a number in a code section stands for."""
    return _NAMES.get(number, f"processor {number}")


def family() -> str:
    """The family of this machine's processor: x86-64, aarch64, or empty for any other."""
    return _FAMILIES.get(platform.machine().lower(), "")


# Of /proc/cpuinfo, on x86-64 and on AArch64.
_FIELDS = (
    *("vendor_id", "cpu family", "model", "stepping", "flags"),
    *("cpu implementer", "cpu architecture", "cpu variant", "cpu part", "features"),
)
_FORBIDDEN = (
    "it needs a system that lets a process make memory executable, which this one forbids (MDWE, "
    "SELinux's execmem)"
)


def processor_held() -> str | None:
    """The processor of this machine's family that DOVETAIL_PROCESSOR names, if it names one."""
    name = variable("DOVETAIL_PROCESSOR")
    if name is None:  # asked at every call that is placed
        return None
    known = [each for each in PROCESSORS if (each == "armv8-a") == (family() == "aarch64")]
    if name not in known:
        raise InvalidOption("DOVETAIL_PROCESSOR", name, f"one of {', '.join(known)}")
    return name


def processor_here() -> int:
    """The number of this machine's processor, or of the smaller one that it is held to; 0: none.

    The C runtime reads the variable once, this function each time: code for a smaller processor
    can be made and run beside that for this one.
    """
    number: int = importlib.import_module("dovetail._native").processor()
    held = processor_held()
    return number if held is None else min(number, PROCESSORS[held])


def target_here() -> Target:
    """The canonical target of this machine's processor, or of the smaller one it is held to.

    This is the only function that asks the machine what schedules and code are to be made for.
    """
    from dovetail.ir.target import TARGETS

    return TARGETS[processor_name(processor_here())]


def processor_identity(*, exact: bool = True) -> str:
    """The processor that code is made for here, as far as code depends on it.

    ``exact``: all that the system says of this machine's, unless it is held to a smaller one; else
    its level.
    """
    level = processor_name(processor_here())
    return f"{level} {_details()}" if exact and not processor_held() else level


@functools.cache
def _details() -> str:
    """The processor's model and instruction sets."""
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open() as file:
        first = itertools.takewhile(str.strip, file)  # of many alike
        fields = dict(line.partition(":")[::2] for line in first)
        held = {name.strip().lower(): text.strip() for name, text in fields.items()}
        return " ".join(held[name] for name in _FIELDS if name in held)
    return f"{platform.system()} {platform.processor()}"


def no_code_here() -> str:
    """Why generated code does not run on this machine; empty when it does."""
    try:
        number = processor_here()
        native = importlib.import_module("dovetail._native")
    except ImportError:
        return "it needs the C runtime, which is not built"
    if number >= _LEAST:
        return "" if native.may_execute() else _FORBIDDEN
    if number:
        return "it needs a processor with AVX2 and fused multiply-adds (x86-64-v3)"
    if family() == "aarch64":
        return "it needs Linux: the runtime loads code for AArch64 nowhere else"
    return f"the runtime loads code for x86-64 and AArch64, not for {platform.machine()}"
