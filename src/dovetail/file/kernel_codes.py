"""Kernel IR's numbers in a file that are not those of types and operations, and its caps."""

from __future__ import annotations

import re

ROLE_CODES = {"in": 0, "out": 1, "inout": 2}
LOAD, CONST, POSITION, APPLY, REDUCE, STORE, SCAN = range(7)

# Caps, the same in C: what a kernel may hold.
MAX_KERNELS, MAX_BUFFERS, MAX_SIZES, MAX_VALUES = 1 << 16, 1 << 10, 1 << 12, 1 << 14
MAX_AXES, MAX_LOOPS, MAX_TERMS, MAX_NAME = 64, 64, 32, 255
# A kernel's name, the one name in the section: what section 7 of the file calls it.
PLAIN_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_.]{{0,{MAX_NAME - 1}}}")
