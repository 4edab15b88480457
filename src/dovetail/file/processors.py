"""The processors that a file can hold code for, and their numbers in its code section.

1 to 4 are the levels of x86-64. Others are ELF's number of the machine, times 256, and a level.
"""

from __future__ import annotations

import platform
import sys

AARCH64 = 183 << 8 | 1  # any of ARMv8-A with NEON
PROCESSORS = {**{f"x86-64-v{n}": n for n in range(1, 5)}, "armv8-a": AARCH64}
_NAMES = {number: name for name, number in PROCESSORS.items()}
_FAMILIES = {"x86_64": "x86-64", "amd64": "x86-64", "aarch64": "aarch64", "arm64": "aarch64"}


def processor_name(number: int) -> str:
    """What a number in a code section stands for."""
    return _NAMES.get(number, f"processor {number}")


def family() -> str:
    """The family of this machine's processor: x86-64, aarch64, or empty for any other."""
    return _FAMILIES.get(platform.machine().lower(), "")


def no_code_here() -> str:
    """Why the runtime loads no code on this machine (native/src/elf.c); empty when it does."""
    if not family():
        return f"the runtime loads code for x86-64 and AArch64, not for {platform.machine()}"
    if family() == "aarch64" and sys.platform != "linux":
        return "it needs Linux: the runtime loads code for AArch64 nowhere else"
    return ""
