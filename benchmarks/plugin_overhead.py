"""What one kernel call costs through the plug-in ABI, in nanoseconds, the kernel itself aside.

A program of many relu calls on tensors of no elements, and one of a single call: the difference is
the runtime's loop and the way through the ABI. Twice: with the smallest plug-in (whose kernel
returns at once) and with examples/accel_c (which also looks its buffers up and counts). Once for
segments under torch.compile, and once for a .dvt file, whose loop also goes over instructions of
the host. Then a whole segment from Python, one kernel, no weights, and a whole call of a file: what
a call costs before any kernel runs.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import torch

from dovetail import _native
from dovetail.backends.plugin.backend import plugin_backend
from dovetail.file.container import chunks, lay_out
from dovetail.file.encode import encode_program
from dovetail.ir import Input, OpCall, Ref, Segment, TensorDesc
from dovetail.ir.program_text import parse_program
from dovetail.runtime.loaded import open_native

ROOT = Path(__file__).parents[1]
PLUGINS = {
    "small": ["tests/plugin/small.c"],
    "accel_c": [f"examples/accel_c/{name}.c" for name in ("device", "kernels", "streams")],
}
MANY, ROUNDS, CALLS = 2001, 15, 50


def build(folder: Path, name: str) -> Path:
    """A plug-in as a shared library."""
    output = folder / f"lib{name}.so"
    sources = [str(ROOT / source) for source in PLUGINS[name]]
    include = f"-I{ROOT / 'native' / 'include'}"
    command = ["cc", "-std=c11", "-O2", "-fPIC", "-shared", include, "-o", str(output)]
    subprocess.run([*command, *sources, "-lm"], check=True)
    return output


def nanoseconds(call: Callable[[], object], calls: int) -> float:
    """The fastest of several rounds: what the machine needs when nobody disturbs it."""
    call()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(calls):
            call()
        times.append((time.perf_counter_ns() - start) / calls)
    return min(times)


def program(native: _native.Plugin, count: int) -> _native.PluginProgram:
    empty = (2, 32, (0,), (1,), -1, 0)
    step = (("aten.relu.default", (empty,), (empty,), ()), "relu", 1, 0)
    return _native.PluginProgram(native, (step,) * count, (), (), 64, 0)


def per_kernel(native: _native.Plugin) -> float:
    many, one = program(native, MANY), program(native, 1)
    differences = [
        nanoseconds(lambda: many.run((), (), ()), CALLS)
        - nanoseconds(lambda: one.run((), (), ()), CALLS)
        for _ in range(3)
    ]
    return statistics.median(differences) / (MANY - 1)


def artifact(name: str, count: int, size: int = 0) -> bytes:
    """A file that launches relu so often, on so many elements."""
    desc = f"float32[{size}]"
    lines = ["program @relus", f'device {name} {{"version": "", "abi": "1.0", "needs": {{}}}}']
    lines += [f"input %x: {desc}", f"temporary %a: {desc} on {name}"]
    lines += [f"temporary %b: {desc} on {name}", f"output %y: {desc}", "copy %a = %x"]
    lines += [f"launch %b = {name}:relu@1 aten.relu.default(%a) {{}}"] * count
    program = parse_program("\n".join([*lines, "copy %y = %b", "return %y"]))
    trees = {"inputs": {"tuple": [{"tuple": [{"tensor": 0}]}, {"dict": []}]}}
    sections, features = encode_program(program, {}, {**trees, "outputs": {"tensor": 0}})
    return b"".join(chunks(*lay_out(sections, features)))


def per_launch(path: Path, name: str) -> float:
    x = numpy.zeros(0, "float32")
    many, one = (open_native(artifact(name, n), plugins=[path]) for n in (MANY, 1))
    differences = [
        nanoseconds(lambda: many(x), CALLS) - nanoseconds(lambda: one(x), CALLS) for _ in range(3)
    ]
    return statistics.median(differences) / (MANY - 1)


def segment() -> Segment:
    desc = TensorDesc("float32", (4, 4), (4, 1))
    call = OpCall("relu", "aten.relu.default", (Ref("x", desc),), {}, desc)
    return Segment("one", (Input("x", desc),), (call,), (Ref("relu", desc),))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in PLUGINS:
            path = build(Path(folder), name)
            backend = plugin_backend(path)()
            run = backend.load(backend.compile(segment()))
            x = torch.randn(4, 4)
            whole = nanoseconds(lambda: run([x]), 2000)  # noqa: B023 - called at once
            kernel = per_kernel(backend.opened.native)
            print(f"{name:8} {kernel:7.1f} ns a kernel; {whole / 1000:6.2f} us a segment of one")
            file = open_native(artifact(name, 1, 16), plugins=[path])
            y = numpy.zeros(16, "float32")
            whole = nanoseconds(lambda: file(y), 2000)  # noqa: B023 - called at once
            kernel = per_launch(path, name)
            print(f"{name:8} {kernel:7.1f} ns a launch; {whole / 1000:6.2f} us a file of one")


if __name__ == "__main__":
    main()
