"""Milliseconds of code generation a kernel, from kernel IR to object code. Target: at most 25.

Every kernel of the kernels and models of ``dovetail bench``, as a module of its own; the kernels at
their two sizes, and at one that no vector divides. CPU time of this thread is counted, so that a
busy machine disturbs little; the best of a few rounds, after one that fills caches. For the bench's
kernels the whole way is measured, from a segment, which may have several. ``--wide`` takes the
programs in ``codegen_cases.py``, forward and backward, and prints kernels over ``--above``
milliseconds; ``--op-db`` the same for the operators that PyTorch tests itself with. Those are
measured again when all others have been: a machine may be slow for some seconds.

    python benchmarks/codegen_time.py [--rounds N] [--wide] [--op-db] [--above MS]
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

TARGET = 25.0
RAGGED = (61, 250)
AGAIN = 4  # times that what took long is measured once more


@dataclass
class Kernel:
    """What one took, in CPU milliseconds, and the lines of LLVM it became."""

    took: float
    lines: int
    ir: Any
    name: str


def segments_of(fn: Any, inputs: tuple[Any, ...], *, backward: bool = False) -> list[Any]:
    """The segments that the cpu backend is given for a function."""
    import torch

    from dovetail import registry

    kind = type(registry.get_backend("cpu"))
    found: list[Any] = []

    compile_segment = kind.compile

    def noting(self: Any, segment: Any) -> Any:
        found.append(segment)
        return compile_segment(self, segment)

    torch.compiler.reset()
    if backward:
        inputs = tuple(x.clone().requires_grad_() for x in inputs)
    with patch.object(kind, "compile", noting), torch.set_grad_enabled(backward):
        result = torch.compile(fn, backend="dovetail", dynamic=False, options={"cache": False})(
            *inputs
        )
        if backward:
            leaves = result if isinstance(result, tuple) else (result,)
            sum(x.sum() for x in leaves).backward()
    return found


def measure(segment: Any, rounds: int) -> tuple[float, int]:
    """CPU milliseconds of one compilation, and how many kernels it made."""
    from dovetail import registry
    from dovetail.codegen.llvm.target import assemble
    from dovetail.file.processors import target_here
    from dovetail.schedule.build import Built
    from dovetail.schedule.plan import make_plan

    backend = registry.get_backend("cpu")
    best = float("inf")
    for _ in range(rounds + 1):
        assemble.cache_clear()
        start = time.thread_time()
        backend.compile(segment)
        best = min(best, time.thread_time() - start)
    return best * 1e3, sum(
        isinstance(step, Built) for step in make_plan(segment, target_here()).steps
    )


def measure_each(name: str, segment: Any, rounds: int, seen: set[str]) -> list[Kernel]:
    """The new kernels of a segment."""
    from dovetail.backends.cpu.code import scheduled
    from dovetail.codegen.llvm.module import module_text
    from dovetail.file.processors import target_here
    from dovetail.schedule.build import Built
    from dovetail.schedule.plan import Unschedulable, make_plan

    found = []
    try:
        kernels = [
            step.kernel
            for step in make_plan(segment, target_here()).steps
            if isinstance(step, Built)
        ]
    except Unschedulable:
        return []
    for kernel in kernels:
        text = module_text(scheduled({"k": kernel}, target_here()), target_here())
        if text not in seen:
            seen.add(text)
            took = measure_kernel(kernel, rounds)
            found.append(Kernel(took, text.count("\n"), kernel, f"{name}: {kernel.name}"))
    return found


def measure_kernel(kernel: Any, rounds: int) -> float:
    """CPU milliseconds of a kernel as a module of its own."""
    from dovetail.backends.cpu.code import scheduled
    from dovetail.codegen.llvm.module import generate
    from dovetail.codegen.llvm.target import assemble
    from dovetail.file.processors import target_here

    best = float("inf")
    for _ in range(rounds + 1):
        assemble.cache_clear()
        start = time.thread_time()
        generate(scheduled({"k": kernel}, target_here()), target_here())
        best = min(best, time.thread_time() - start)
    return best * 1e3


def variety(cases: Any, rounds: int, above: float) -> None:
    """Print the kernels of many programs that take long, and the worst of all."""
    warnings.simplefilter("ignore")
    seen: set[str] = set()
    found: list[Kernel] = []
    for name, fn, inputs, backward in cases:
        for both in (False, True) if backward else (False,):
            try:
                segments = segments_of(fn, inputs, backward=both)
            except Exception:  # what Dynamo does not capture has no kernels
                continue
            for segment in segments:
                found += measure_each(name, segment, rounds, seen)
    measure_again(found, rounds, above)
    for kernel in found:
        if kernel.took > above:
            print(f"{kernel.took:7.1f} ms {kernel.lines:>6} lines  {kernel.name}")
    over = sum(kernel.took > TARGET for kernel in found)
    worst = max((kernel.took for kernel in found), default=0.0)
    print(f"{len(found)} kernels, {over} over {TARGET:.0f} ms, worst {worst:.1f}")


def measure_again(found: list[Kernel], rounds: int, above: float) -> None:
    """Measure once more what took long, some time later."""
    for _ in range(AGAIN):
        for kernel in found:
            if kernel.took > above:
                kernel.took = min(kernel.took, measure_kernel(kernel.ir, rounds))


def main() -> None:
    """Print a line a case and the worst of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--op-db", action="store_true")
    parser.add_argument("--above", type=float, default=15.0)
    args = parser.parse_args()
    rounds = args.rounds
    if args.wide or args.op_db:
        import codegen_cases

        variety(
            codegen_cases.programs() if args.wide else codegen_cases.op_db(), rounds, args.above
        )
        return
    print(f"worst {max(bench_kernels(rounds), bench_models(rounds)):.1f} ms, target {TARGET:.0f}")


def bench_kernels(rounds: int) -> float:
    """Print a line for each kernel of the bench, from its segment on; the worst."""
    from dovetail.bench import cases

    sizes = (*cases.SIZES, RAGGED)
    made = {f"{name}-{n}x{m}": make(n, m) for n, m in sizes for name, make in cases.KERNELS.items()}
    segments = {name: segments_of(*case)[0] for name, case in made.items()}
    found = {name: measure(segment, rounds) for name, segment in segments.items()}
    for _ in range(AGAIN):
        found = {name: min(found[name], measure(segments[name], rounds)) for name in found}
    for name, (total, count) in found.items():
        print(f"{name:<32}{count:>3} kernels  {total:7.1f} ms  {total / count:7.1f} each")
    return max(total / count for total, count in found.values())


def bench_models(rounds: int) -> float:
    """Print a line for each model, with the longest of its kernels; the worst."""
    from dovetail.bench import cases

    found: dict[str, list[Kernel]] = {}
    for name, make in cases.MODELS.items():
        seen: set[str] = set()
        parts = [measure_each(name, s, rounds, seen) for s in segments_of(*make())]
        found[name] = [kernel for part in parts for kernel in part]
    for kernels in found.values():
        measure_again(kernels, rounds, TARGET / 2)
    longest = {name: max(kernels, key=lambda k: k.took) for name, kernels in found.items()}
    for name, worst in longest.items():
        count = f"{len(found[name]):>3} kernels"
        print(f"{name:<32}{count}  {worst.took:7.1f} ms  for {worst.name}, {worst.lines} lines")
    return max(worst.took for worst in longest.values())


if __name__ == "__main__":
    main()
