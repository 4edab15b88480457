"""Copies of ONNX Runtime and OpenVINO that take this processor for one without AVX-512.

python benchmarks/hold_rivals.py FOLDER
PYTHONPATH=FOLDER dovetail bench models --frozen --processor x86-64-v3

Both choose some kernels by what the processor itself says, whatever they are told: of OpenVINO's
products most run in MLAS, which reads no variable. They ask which registers the system saves
(``xgetbv``); in the copies the answer is those of AVX. What is installed stays as it is.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from dovetail.bench.contest import HELD, NOT_HELD

# What compilers write after ``xgetbv``, and what there is instead: edx = 0, eax = 7 (x87, SSE and
# AVX), and nothing for what is left.
_ANSWER = bytes.fromhex("31d26a0758")  # xor edx, edx; push 7; pop rax
_SHORT = bytes.fromhex("6a0758")  # the same without edx, where it is not used
_WRITTEN = {
    bytes.fromhex("0f01d089c0"): _ANSWER,  # mov eax, eax
    bytes.fromhex("0f01d048c1e22089c0"): _ANSWER + b"\x90" * 4,  # shl rdx, 32; mov eax, eax
    bytes.fromhex("0f01d0c1ef1a"): _SHORT + bytes.fromhex("c1ef1a"),  # shr edi, 26
}
_ASKING = b"\x0f\xa2"  # cpuid, which stands before: else the bytes are no instruction
_BEFORE = 256  # bytes


def main(folder: str) -> None:
    """Copy the packages and change the libraries of the copies."""
    for name in sorted(NOT_HELD):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            print(f"{name} is not installed", file=sys.stderr)
            continue
        copy = Path(folder) / name
        shutil.copytree(Path(spec.origin).parent, copy, dirs_exist_ok=True)
        count = sum(_hold(library) for library in copy.rglob("*.so*"))
        if not count:
            sys.exit(f"{name} asks in a way that is not known here: it is not held")
        (copy / HELD).write_text("x86-64-v3\n")
        print(f"{name}: {count} places in {copy}")


def _hold(library: Path) -> int:
    """Change one library; how many places of it."""
    code = bytearray(library.read_bytes())
    places = list(_places(bytes(code)))
    for start, answer in places:
        code[start : start + len(answer)] = answer
    if places:
        library.write_bytes(code)
    return len(places)


def _places(code: bytes) -> Iterator[tuple[int, bytes]]:
    """Where a library asks, and what is to stand there."""
    for written, answer in _WRITTEN.items():
        start = code.find(written)
        while start >= 0:
            if _ASKING in code[max(0, start - _BEFORE) : start]:
                yield start, answer
            start = code.find(written, start + 1)


if __name__ == "__main__":
    main(*sys.argv[1:2])
