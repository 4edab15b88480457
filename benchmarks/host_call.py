"""What a host call costs beside PyTorch's own time, in microseconds a call.

Programs of many and of few host calls are timed, so that the difference is what one call takes:
through libtorch's C functions and through Python. Beside them stand eager, and the operator's C
function called alone in a loop (through ctypes, whose own cost is measured and taken off). All are
interleaved, and measured in the processor's time of the one thread, so that a busy machine
disturbs them little.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from dovetail.file import container
from dovetail.file.encode import encode_program
from dovetail.ir.program_text import parse_program
from dovetail.runtime.loaded import open_native

WIDTH, MANY, ROUNDS, CALLS = 8, 41, 15, 300


def program(op: str, operands: str, kind: str, count: int) -> str:
    """``count`` calls, each on the result of the one before."""
    shape = f"float32[{WIDTH}, {WIDTH}]"
    lines = ["program @p", f"input %h0: {shape}", f"input %w: {shape}", f"input %b: {shape}"]
    last = "host" if kind == "host" else "output"
    lines += [f"{last if i == count else kind} %h{i}: {shape}" for i in range(1, count + 1)]
    for i in range(count):
        given = ", ".join(f'{{"buffer": "{n}"}}' for n in operands.replace("h", f"h{i}").split())
        lines.append(f"call %h{i + 1} = {op} [{given}] {{}}")
    return "\n".join([*lines, f"return %h{count}", ""])


def load(text: str, *, python: bool = False) -> Any:
    sections, features = encode_program(parse_program(text), {}, {}, debug=False)
    native = open_native(b"".join(container.chunks(*container.lay_out(sections, features))))
    if python:
        native.plan_host([None] * len(native.host_calls()))
    return native


def one_call(text: Callable[[int], str], tensors: list[Any], *, python: bool = False) -> Any:
    """A function that says how long one of the program's host calls takes, this time."""
    many, one = load(text(MANY), python=python), load(text(1), python=python)

    def measure() -> float:
        calls = CALLS // 10 if python else CALLS
        return (timed(lambda: many(*tensors), calls) - timed(lambda: one(*tensors), calls)) / (
            MANY - 1
        )

    return measure


def timed(call: Callable[[], Any], calls: int) -> float:
    start = time.thread_time()
    for _ in range(calls):
        call()
    return (time.thread_time() - start) / calls


def alone(tensors: list[torch.Tensor]) -> Callable[[], float] | None:
    """The C function of addmm into memory that exists, less what ctypes itself takes."""
    try:
        library = ctypes.CDLL("libtorch_cpu.so", mode=ctypes.RTLD_GLOBAL)
        blob, addmm = library.aoti_torch_create_tensor_from_blob, library.aoti_torch_cpu_addmm_out
        nothing = library.aoti_torch_is_defined
    except (OSError, AttributeError):
        return None
    handles = []
    sizes, strides = (ctypes.c_int64 * 2)(WIDTH, WIDTH), (ctypes.c_int64 * 2)(WIDTH, 1)
    held = [*tensors, torch.empty_like(tensors[0])]
    for tensor in held:
        handle = ctypes.c_void_p()
        data = ctypes.c_void_p(tensor.data_ptr())
        offset = ctypes.c_int64(0)
        blob(data, ctypes.c_int64(2), sizes, strides, offset, 6, 0, 0, ctypes.byref(handle))
        handles.append(handle)
    x, w, b, out = handles
    one, answer = ctypes.c_double(1.0), ctypes.c_bool()
    place = ctypes.byref(answer)

    def measure() -> float:
        assert len(held) == len(handles)  # their memory must stay
        whole = timed(lambda: addmm(out, b, x, w, one, one), 10 * CALLS)
        return whole - timed(lambda: nothing(out, place, x, w, one, one), 10 * CALLS)

    return measure


def main() -> None:
    torch.set_num_threads(1)
    tensors = [torch.randn(WIDTH, WIDTH) / WIDTH for _ in range(3)]
    x, w, b = tensors
    addmm = "aten.addmm.default", "b h w"
    relu = "aten.relu.default", "h"
    rows: dict[str, Callable[[], float] | None] = {
        "addmm, eager": lambda: timed(lambda: torch.addmm(b, x, w), 10 * CALLS),
        "addmm, its C function alone": alone([x, w, b]),
        "addmm, into the arena, from C": one_call(
            lambda n: program(*addmm, "temporary", n), tensors
        ),
        "addmm, new result, from C": one_call(lambda n: program(*addmm, "host", n), tensors),
        "addmm, through Python": one_call(
            lambda n: program(*addmm, "host", n), tensors, python=True
        ),
        "relu, eager": lambda: timed(lambda: torch.relu(x), 10 * CALLS),
        "relu, dispatcher, from C": one_call(lambda n: program(*relu, "host", n), tensors),
        "relu, through Python": one_call(lambda n: program(*relu, "host", n), tensors, python=True),
    }
    found: dict[str, list[float]] = {name: [] for name in rows}
    with torch.no_grad():
        for _ in range(ROUNDS):
            for name, measure in rows.items():
                if measure is not None:
                    found[name].append(measure() * 1e6)
    print(f"one host call on {WIDTH} x {WIDTH} floats, µs: median (least)")
    for name, values in found.items():
        if values:
            print(f"  {name:<32}{statistics.median(values):8.2f} ({min(values):.2f})")


if __name__ == "__main__":
    main()
