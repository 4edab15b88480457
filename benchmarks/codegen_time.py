"""Milliseconds of code generation a kernel, from a segment to object code. Target: at most 25.

Every kernel of ``dovetail bench`` at its two sizes, and at one that no vector divides. CPU time of
this thread is counted, so that a busy machine does not disturb; the best of a few rounds, after
one that fills caches.

    python benchmarks/codegen_time.py [--rounds N]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

TARGET = 25.0
RAGGED = (61, 250)


def segments_of(fn: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """The segments that the cpu backend is given for a function."""
    import torch
    from torch._functorch.aot_autograd import aot_module_simplified

    from dovetail import registry
    from dovetail.capture.decompose import keeping_claimed
    from dovetail.capture.from_fx import segment_of

    backend = registry.get_backend("cpu")
    found: list[Any] = []

    def compiler(gm: Any, _: Any) -> Any:
        found.append(segment_of(gm, "benchmark"))
        return gm

    def entry(gm: Any, given: Any) -> Any:
        table = keeping_claimed([(backend.decompositions(), backend.keeps_whole)])
        return aot_module_simplified(gm, given, fw_compiler=compiler, decompositions=table)

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(fn, backend=entry, dynamic=False)(*inputs)
    return found


def measure(segment: Any, rounds: int) -> tuple[float, int]:
    """CPU milliseconds of one compilation, and how many kernels it made."""
    from dovetail import registry
    from dovetail.codegen.llvm.target import assemble
    from dovetail.schedule.build import Built
    from dovetail.schedule.plan import make_plan

    backend = registry.get_backend("cpu")
    best = float("inf")
    for _ in range(rounds + 1):
        assemble.cache_clear()
        start = time.thread_time()
        backend.compile(segment)
        best = min(best, time.thread_time() - start)
    return best * 1e3, sum(isinstance(step, Built) for step in make_plan(segment).steps)


def main() -> None:
    """Print a line a case and the worst of all."""
    import dovetail.backends.cpu_support  # noqa: F401  # registers the rules
    from dovetail.bench import cases

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    worst = 0.0
    for rows, columns in (*cases.SIZES, RAGGED):
        for name, make in cases.KERNELS.items():
            for segment in segments_of(*make(rows, columns)):
                total, count = measure(segment, rounds)
                worst = max(worst, total / max(count, 1))
                case = f"{name}-{rows}x{columns}"
                print(f"{case:<32}{count:>3} kernels  {total:7.1f} ms  {total / count:7.1f} each")
    print(f"worst {worst:.1f} ms a kernel, target {TARGET:.0f}")


if __name__ == "__main__":
    main()
