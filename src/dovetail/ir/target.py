"""The machine that code is made for, as data: what a schedule may depend on.

A ``Target`` is frozen, hashes and prints; the text parses back. The named ones are canonical: any
machine of a kind, never this very machine, so that files and cache keys made here serve others.
``file/processors.py`` tells which of them this machine is; nothing in here asks it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from dovetail.errors import InvalidTarget

_KIB, _MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """A processor or an accelerator. Sizes are in bytes, times in seconds; 0: not known, or none.

    For a GPU a core is a multiprocessor, a vector is what a warp works on in step, ``l1_bytes`` is
    what is shared with ``shared_bytes``, and ``vector_registers`` counts a multiprocessor's
    registers of 32 bits.
    """

    kind: str  # "cpu", "gpu"
    name: str
    vector_bytes: int  # of a vector register
    vector_registers: int
    mask_bytes: int  # the smallest element that loads and stores can leave out; 0: no masks
    line_bytes: int  # of a cache line
    l1_bytes: int  # of data, for each core
    l2_bytes: int  # for each core
    l3_bytes: int  # a core's share
    cores: int  # that work is divided for: more find enough to do, fewer lose little
    features: tuple[str, ...] = ()  # instruction sets, by LLVM's names
    thread_seconds: float = 0.0  # work that is worth one more thread; a kernel launch on a GPU
    warp: int = 0  # threads in step
    shared_bytes: int = 0  # memory that the threads of a block share, for each core
    tensor_cores: tuple[str, ...] = ()  # types that matrix instructions multiply
    bytes_per_second: float = 0.0  # to and from main memory

    @property
    def lanes(self) -> int:
        """float32 elements in a vector."""
        return self.vector_bytes // 4

    def __str__(self) -> str:
        given = [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self)]
        return f"target {self.name}\n" + "".join(
            f"  {name}: {_text(value)}".rstrip() + "\n" for name, value in given if name != "name"
        )

    def digest(self) -> str:
        """64 bits that tell targets apart."""
        return sha256(str(self).encode()).hexdigest()[:16]


def _text(value: object) -> str:
    return " ".join(value) if isinstance(value, tuple) else str(value)


def parse_target(text: str) -> Target:
    """The target that ``str`` wrote; InvalidTarget for anything else."""
    head, *lines = text.splitlines() or [""]
    word, _, name = head.partition(" ")
    pairs = (line.strip().partition(":") for line in lines)
    found = {name: value.strip() for name, _, value in pairs}
    fields = {f.name: f.type for f in dataclasses.fields(Target) if f.name != "name"}
    if word != "target" or len(found) != len(lines) or not found.keys() <= fields.keys():
        raise InvalidTarget(f"this text is no target: {head!r}")
    try:
        values: dict[str, Any] = {n: _VALUES[str(fields[n])](t) for n, t in found.items()}
        return Target(name=name, **values)
    except (ValueError, TypeError) as error:
        raise InvalidTarget(f"this text is no target: {error}") from None


_VALUES: dict[str, Callable[[str], object]] = {
    "str": str,
    "int": int,
    "float": float,
    "tuple[str, ...]": lambda text: tuple(text.split()),
}


# Another thread takes about three microseconds to start: the time of 98,304 loads from a near
# cache, in which work is counted (ir/ops.py). It was measured on one x86-64-v4 and is used for all.
_THREAD = 98304 * 30e-12
# Cores: what sixteen threads can share is enough for most machines, and costs two little.
_CPU: dict[str, Any] = {"kind": "cpu", "line_bytes": 64, "cores": 16, "thread_seconds": _THREAD}
# Caches of the least processor of a level that is common: Penryn, Haswell, Skylake-SP, Cortex-A72.
_SSE = Target(
    name="x86-64-v2",
    vector_bytes=16,
    vector_registers=16,
    mask_bytes=0,
    l1_bytes=32 * _KIB,
    l2_bytes=256 * _KIB,
    l3_bytes=2 * _MIB,
    **_CPU,
)
_AVX2 = dataclasses.replace(
    _SSE, name="x86-64-v3", vector_bytes=32, mask_bytes=4, features=("avx2", "f16c", "fma")
)
_AVX512 = dataclasses.replace(
    _AVX2,
    name="x86-64-v4",
    vector_bytes=64,
    vector_registers=32,
    mask_bytes=1,
    l2_bytes=_MIB,
    l3_bytes=1408 * _KIB,
    features=(*_AVX2.features, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
)
# The feature that adds products of pairs of bfloat16 to float32, lane by lane: Cooper Lake, Zen 4.
PAIRS_OF_BFLOAT16 = "avx512bf16"
WITHOUT_PAIRS = _AVX512.name  # the target that differs in it alone
_BFLOAT16 = dataclasses.replace(
    _AVX512, name="x86-64-v4-bf16", features=(*_AVX512.features, PAIRS_OF_BFLOAT16)
)
_NEON = dataclasses.replace(
    _SSE,
    name="armv8-a",
    vector_registers=32,
    l2_bytes=512 * _KIB,
    l3_bytes=_MIB,
    features=("fma", "neon"),
)
# NVIDIA's description of the H200: 132 multiprocessors of 65,536 registers, 228 KiB of memory for
# L1 and blocks (227 for one block), 50 MiB of L2, 4.8 TB/s. A launch takes about 3 us.
_HOPPER = Target(
    kind="gpu",
    name="sm_90",
    vector_bytes=128,
    vector_registers=65536,
    mask_bytes=1,
    line_bytes=128,
    l1_bytes=228 * _KIB,
    l2_bytes=50 * _MIB // 132,
    l3_bytes=0,
    cores=132,
    thread_seconds=3e-6,
    warp=32,
    shared_bytes=227 * _KIB,
    tensor_cores=("bfloat16", "float16", "tfloat32", "float8", "int8"),
    bytes_per_second=4.8e12,
)
# A device that nothing is known of: each work item is one lane, and work is divided as for sixteen.
_DEVICE = Target(
    kind="gpu",
    name="opencl",
    vector_bytes=4,
    vector_registers=0,
    mask_bytes=1,
    line_bytes=64,
    l1_bytes=0,
    l2_bytes=0,
    l3_bytes=0,
    cores=16,
)
_X86_64 = (dataclasses.replace(_SSE, name="x86-64-v1"), _SSE, _AVX2, _AVX512, _BFLOAT16)
TARGETS = {t.name: t for t in (*_X86_64, _NEON, _HOPPER, _DEVICE)}
