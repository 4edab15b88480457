"""Other schedules of the kernels of ``gpu_kernels.py``: what each takes beside the one chosen.

``python benchmarks/gpu_schedules.py [--dtypes bfloat16,float32] [--whole] [NAME …]``. Kernels are
timed one by one on memory of their own. ``--whole`` leaves long rows uncut.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import torch

from dovetail import _native, registry
from dovetail.backends.cuda import driver
from dovetail.backends.cuda.program import BlockLaunch, CudaProgram
from dovetail.bench.gpu_cases import KERNELS as CASES
from dovetail.errors import InvalidSchedule
from dovetail.ir.dtypes import DTYPES
from dovetail.ir.kernel_text import parse_kernel, print_kernel
from dovetail.ir.target import TARGETS, Target
from dovetail.schedule.gpu.blocks import BlockSchedule
from dovetail.schedule.text import parse_schedule, print_schedule
from dovetail.schedule.verify_schedule import verify_schedule

WORTH = 10_000_000  # picoseconds of a kernel that is looked at
SHOWN = 5


def others(kernel: Any, chosen: BlockSchedule, target: Target) -> Iterator[BlockSchedule]:
    """Schedules near the one chosen."""
    found = []
    powers = [1 << n for n in range(20)]
    if not chosen.columns:
        found = [
            replace(chosen, rows=r, warps=w) for r in powers[8:14] for w in (2, 4, 8) if r >= 32 * w
        ]
    elif chosen.walked:
        found = [replace(chosen, rows=r, warps=w) for r in powers[:4] for w in (2, 4, 8, 16, 32)]
    elif chosen.along:
        found = [
            replace(chosen, rows=r, columns=c, warps=w)
            for r in (16, 32, 64)
            for c in (32, 64, 128)
            for w in (4, 8)
        ]
    else:
        down = chosen.rows >= 16 and not chosen.persistent
        for warps in (1, 2, 4, 8, 16, 32):
            if down:
                sizes = [(r, c) for r in (32, 64, 128, 256) for c in (4, 8, 16, 32, 64)]
                found += [replace(chosen, rows=r, columns=c, warps=warps) for r, c in sizes]
                continue
            if chosen.persistent:
                rows = {chosen.rows, max(chosen.rows // 2, 1), chosen.rows * 2, chosen.rows * 4}
                found += [replace(chosen, rows=r, warps=warps) for r in rows]
            found += [
                replace(chosen, rows=1, columns=c, warps=warps, persistent=False)
                for c in (1024, 2048, 4096, 8192, 16384)
            ]
    for schedule in found:
        each = schedule.rows * max(schedule.columns, 1) / (schedule.warps * 32)
        if not 1 <= each <= 128:
            continue
        try:
            yield verify_schedule(kernel, schedule, target)
        except InvalidSchedule:
            continue


def compiled(texts: tuple[str, str, str]) -> Any:
    """Code, in a process of its own."""
    from dovetail.codegen.triton.compile import compile_kernel

    kernel, schedule, target = texts
    try:
        return compile_kernel(parse_kernel(kernel), parse_schedule(schedule), TARGETS[target])
    except Exception as problem:
        return str(problem)[:200]


def milliseconds(cubin: Any, words: list[Any], blocks: int, tensors: list[Any]) -> float:
    """The least time of a launch."""
    function = driver.load(cubin)
    step = ("launch", (function.address, blocks, function.threads, function.shared, words))
    inputs = [
        (n, kind.dlpack, kind.bits, tuple(t.shape), t.stride())
        for n, t in enumerate(tensors)
        for kind in [DTYPES[str(t.dtype).removeprefix("torch.")]]
    ]
    run = _native.GpuProgram(
        driver.launch_address(), 0, len(tensors), None, inputs, [step] * 4, [], torch.Tensor, id,
        id, driver.raise_failed,
    ).run  # fmt: skip
    best = float("inf")
    for _ in range(6):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run(list(tensors))
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 4)
    return best


def programs(name: str, dtype: torch.dtype) -> list[CudaProgram]:
    """The programs of a case."""
    found: list[CudaProgram] = []
    real = CudaProgram.compile

    def recording(self: CudaProgram) -> None:
        found.append(self)
        real(self)

    CudaProgram.compile = recording  # type: ignore[method-assign]
    try:
        fn, args = CASES[name](dtype)
        torch.compiler.reset()
        with torch.no_grad():
            torch.compile(fn, backend="cuda", dynamic=False, options={"cache": False})(*args)
    finally:
        CudaProgram.compile = real  # type: ignore[method-assign]
    return found


def memory(value: Any) -> torch.Tensor:
    dtype = getattr(torch, value.dtype)
    shape = tuple(map(int, value.shape))
    if not dtype.is_floating_point:
        return torch.zeros(shape, dtype=dtype, device="cuda")
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


def show(name: str, kind: str, pool: ProcessPoolExecutor) -> None:
    """The best schedules of each kernel of a case."""
    for each in programs(name, getattr(torch, kind)):
        for step in each.steps:
            if not isinstance(step, BlockLaunch):
                continue
            kernel, chosen = each.kernels[step.name]
            if chosen.cost < WORTH:
                continue
            tried = list(dict.fromkeys([chosen, *others(kernel, chosen, each.target)]))
            texts = [(print_kernel(kernel), print_schedule(s), each.target.name) for s in tried]
            codes = list(pool.map(compiled, texts))
            tensors = [memory(v) for v in step.buffers]
            words = [(True, n) for n in range(len(tensors))]
            times = []
            for schedule, code in zip(tried, codes, strict=True):
                if isinstance(code, str):
                    times.append((9e9, code))
                    continue
                blocks = int(schedule.units(kernel))  # type: ignore[arg-type]
                s = schedule
                note = f"{s.rows}x{s.columns} w{s.warps}{' p' if s.persistent else ''}"
                note += " walked" if s.walked else ""
                times.append((milliseconds(code, words, blocks, tensors), note))
            first, ranked = times[0], sorted(times)
            best = "; ".join(f"{t * 1e3:.1f} {note}" for t, note in ranked[:SHOWN])
            model = chosen.cost / 1e6
            print(
                f"{name:22}{kind:9}{step.name}: {first[0] * 1e3:6.1f} {first[1]} "
                f"(model {model:.0f}) | {best}",
                flush=True,
            )
            del tensors
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--whole", action="store_true")
    given = parser.parse_args()
    registry.list_backends()
    if given.whole:
        from dovetail.schedule.gpu import cut

        cut.LONGEST = 1 << 40
    workers = min(os.cpu_count() or 1, 16)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for kind in given.dtypes.split(","):
            for name in given.names or CASES:
                try:
                    show(name, kind, pool)
                except Exception as problem:  # one kernel says nothing of the others
                    print(f"{name} {kind}: {type(problem).__name__} {str(problem)[:300]}")


if __name__ == "__main__":
    if torch.cuda.is_available():
        main()
    else:
        print("no CUDA device: nothing to measure")
