"""How the cpu backend's compile time grows: 1,000 against 10,000 nodes. Target: at most 12 x.

Segments of three kinds go straight to the backend: one chain of elementwise operations, one with
products, norms and views in it, and many short branches that end in one sum. Each in a fresh
process, interleaved.

    python benchmarks/cpu_scaling.py [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from common import here, interleaved, spread

SIZES = (1_000, 10_000)
KINDS = ("chain", "blocks", "branches")


class Writer:
    """Writes a segment call by call; every value is a 16 by 32 matrix."""

    def __init__(self) -> None:
        from dovetail.ir import Input, Ref, TensorDesc

        self.desc = TensorDesc("float32", (16, 32), (32, 1))
        self.square = TensorDesc("float32", (32, 32), (32, 1))
        self.inputs = (Input("x", self.desc), Input("w", self.square))
        self.x, self.w = Ref("x", self.desc), Ref("w", self.square)
        self.calls: list[Any] = []

    def call(self, op: str, *args: Any, desc: Any = None) -> Any:
        """Append a call; its result."""
        from dovetail.ir import OpCall, Ref

        name, desc = f"v{len(self.calls)}", desc or self.desc
        self.calls.append(OpCall(name, f"aten.{op}", args, {}, desc))
        return Ref(name, desc)

    def segment(self, out: Any) -> Any:
        """The whole."""
        from dovetail.ir.segment import Segment

        return Segment("benchmark", self.inputs, tuple(self.calls), (out,))


def chain(nodes: int) -> Any:
    """One elementwise operation after another, now and then with an older value."""
    writer = Writer()
    value = older = writer.x
    for number in range(nodes):
        before = value
        if number % 3:
            value = writer.call(("sin.default", "relu.default")[number % 2], value)
        else:
            value = writer.call(("add.Tensor", "mul.Tensor")[number % 2], value, older)
        older = before
    return writer.segment(value)


def blocks(nodes: int) -> Any:
    """A product, a view, an activation, a row maximum and a residual sum, again and again."""
    from dovetail.ir import TensorDesc

    writer, flat = Writer(), TensorDesc("float32", (512,), (1,))
    row = TensorDesc("float32", (16, 1), (1, 1))
    value = writer.x
    while len(writer.calls) < nodes:
        out = writer.call("mm.default", value, writer.w)
        out = writer.call("view.default", out, (512,), desc=flat)
        out = writer.call("tanh.default", out, desc=flat)
        out = writer.call("view.default", out, (16, 32))
        top = writer.call("amax.default", out, (-1,), True, desc=row)
        out = writer.call("sub.Tensor", out, top)
        value = writer.call("add.Tensor", value, out)
    return writer.segment(value)


def branches(nodes: int) -> Any:
    """Many short chains from one input, summed."""
    writer = Writer()
    total = writer.x
    while len(writer.calls) < nodes:
        out = writer.call("sin.default", writer.x)
        out = writer.call("mul.Tensor", out, 0.5)
        total = writer.call("add.Tensor", total, out)
    return writer.segment(total)


def measure(kind: str, nodes: int) -> dict[str, float]:
    """Seconds of one compilation."""
    from dovetail import get_backend

    make = {"chain": chain, "blocks": blocks, "branches": branches}[kind]
    backend = get_backend("cpu")
    backend.compile(make(20))  # imports
    segment = make(nodes)
    start = time.process_time()
    backend.compile(segment)
    return {"seconds": time.process_time() - start}


def main() -> None:
    """Print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("variant", nargs="?", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant:
        kind, nodes = arguments.variant.split("-")
        print(json.dumps(measure(kind, int(nodes))))
        return
    variants = [f"{kind}-{size}" for kind in KINDS for size in SIZES]
    results = interleaved(here(__file__), variants, arguments.rounds)
    for kind in KINDS:
        small, large = ([r["seconds"] for r in results[f"{kind}-{size}"]] for size in SIZES)
        print(f"{kind:<10}{SIZES[0]:>7} nodes  s {spread(small)}")
        print(f"{kind:<10}{SIZES[1]:>7} nodes  s {spread(large)}")
        ratios = [b / a for a, b in zip(small, large, strict=True)]
        print(f"{kind:<10}  ratio           {spread(ratios)}  target 12")


if __name__ == "__main__":
    main()
