"""What the rules take beside the fastest candidate, and what ``mode="max-autotune"`` is worth.

``problems``: products, convolutions and attention of sizes that no other benchmark has, each by all
its candidates: what the rules take, its time over the fastest one's, and which that is. ``models``:
calls of frozen models, tuned over plain, and seconds of the first call of either, with empty
caches and each in processes of their own, interleaved. One thread is measured in its own time,
since others may use the machine. As on a processor with AVX2: DOVETAIL_PROCESSOR=x86-64-v3
ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2.

    python benchmarks/autotune.py [--only problems models] [--kinds mm conv …] [--threads N]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch

from dovetail.backends.cpu.backend import CpuBackend
from dovetail.compilers.local import compile_segment
from dovetail.ir import Input, Segment
from dovetail.ir.call import OpCall, Ref
from dovetail.ir.strides import contiguous_strides
from dovetail.ir.tensor import TensorDesc
from dovetail.schedule.images import channels_last
from dovetail.tuning import measure
from dovetail.tuning.decide import least
from dovetail.tuning.problem import Problem, problem_of

# Rows, sum, columns; by a weight, whose columns lie apart as nn.Linear's.
PRODUCTS = (
    (2, 320, 640), (2, 768, 3072), (2, 2048, 4096), (3, 512, 512), (3, 320, 640), (3, 2560, 640),
    (6, 1280, 320), (12, 640, 2560), (24, 192, 576), (49, 384, 384), (50, 1152, 288),
    (77, 512, 2048), (96, 2560, 640), (200, 160, 480), (300, 80, 320), (400, 1536, 384),
    (577, 256, 1024), (1024, 96, 384), (1500, 384, 384), (3136, 64, 256), (257, 1408, 1408),
)  # fmt: skip
# Batch, rows, sum, columns.
BATCHES = (
    (12, 50, 32, 50),
    (8, 200, 64, 200),
    (16, 77, 80, 77),
    (6, 400, 48, 48),
    (32, 16, 128, 300),
)
# Images, channels in, side, channels out, taps, step, groups.
CONVOLUTIONS = (
    (1, 24, 80, 48, 3, 1, 1), (1, 40, 40, 120, 1, 1, 1), (1, 80, 20, 80, 3, 1, 1),
    (2, 96, 28, 96, 3, 1, 1), (1, 160, 14, 320, 3, 2, 1), (1, 192, 14, 192, 5, 1, 1),
    (1, 320, 10, 320, 3, 1, 1), (1, 640, 8, 1280, 1, 1, 1), (1, 48, 64, 48, 3, 1, 48),
    (4, 144, 28, 144, 5, 1, 144), (1, 384, 7, 384, 3, 1, 1), (1, 3, 160, 32, 3, 2, 1),
    (1, 128, 32, 128, 3, 1, 4), (8, 48, 14, 192, 1, 1, 1), (1, 1024, 7, 512, 3, 1, 1),
    (1, 768, 16, 96, 1, 1, 1), (1, 8, 96, 16, 3, 1, 1), (1, 16, 56, 16, 3, 1, 1),
    (1, 16, 28, 64, 3, 1, 1), (1, 256, 14, 256, 3, 2, 1), (2, 64, 20, 128, 1, 2, 1),
    (1, 200, 12, 200, 3, 1, 200), (1, 32, 112, 32, 7, 1, 32), (1, 512, 5, 512, 3, 1, 1),
    (1, 64, 40, 64, 3, 1, 1), (16, 256, 7, 256, 3, 1, 1),
)  # fmt: skip
# Batch, heads, queries, keys, size of a head, causal.
ATTENTION = (
    (1, 6, 50, 50, 64, False), (2, 8, 200, 200, 48, False), (1, 16, 384, 384, 64, True),
    (1, 4, 600, 600, 80, False), (4, 6, 77, 77, 64, True), (1, 8, 1, 300, 64, False),
    (1, 12, 16, 500, 64, False), (1, 2, 1200, 1200, 32, True), (1, 8, 900, 900, 64, False),
    (8, 8, 64, 64, 32, False), (1, 32, 1, 2000, 128, False), (4, 12, 1, 120, 64, False),
    (1, 8, 2, 400, 64, False), (1, 8, 8, 500, 64, False), (1, 8, 4, 400, 64, False),
    (1, 8, 1024, 1024, 64, False),
    (1, 4, 1800, 1800, 64, True), (1, 32, 128, 128, 128, True), (1, 20, 1500, 1500, 64, False),
)  # fmt: skip
MODELS = ("resnet18", "mobilenet", "gpt")
SECONDS = 2.0  # of calls of a model, a turn
WORSE = 1.1  # than the fastest: a rule that picks wrong


def desc(*shape: int, strides: tuple[int, ...] | None = None) -> TensorDesc:
    return TensorDesc("float32", shape, strides or contiguous_strides(shape))


def image(*shape: int) -> TensorDesc:
    return desc(*shape, strides=channels_last(shape))


def problem(call: OpCall, constants: str, follows: bool) -> Problem:
    """A call, with something behind it that a kernel would join to it, or nothing."""
    inputs = tuple(Input(r.name, r.desc) for r in dict.fromkeys(call.refs()))
    if isinstance(call.output, tuple):
        return _problem(inputs, (call,), Ref("y", call.output[0], (0,)), constants)
    after = OpCall("z", "aten.relu.default", (Ref("y", call.output),), {}, call.output)
    calls = (call, after) if follows else (call,)
    return _problem(inputs, calls, Ref(calls[-1].name, call.output), constants)


def _problem(inputs: Any, calls: Any, out: Ref, constants: str) -> Problem:
    found = problem_of(Segment("s", inputs, calls, (out,)), calls[0], frozenset(constants))
    assert isinstance(found, Problem)
    return found


def products() -> Iterator[tuple[str, Problem]]:
    for m, k, n in PRODUCTS:
        x, w, b = Ref("x", desc(m, k)), Ref("w", desc(k, n, strides=(1, k))), Ref("b", desc(n))
        call = OpCall("y", "aten.addmm.default", (b, x, w), {}, desc(m, n))
        yield f"linear {m} x {k} x {n}, frozen", problem(call, "wb", True)
        yield f"linear {m} x {k} x {n}", problem(call, "", True)
    for b_, m, k, n in BATCHES:
        args = Ref("x", desc(b_, m, k)), Ref("w", desc(b_, k, n))
        call = OpCall("y", "aten.bmm.default", args, {}, desc(b_, m, n))
        yield f"bmm {b_} x {m} x {k} x {n}", problem(call, "", False)


def convolutions() -> Iterator[tuple[str, Problem]]:
    for n, i, side, o, taps, step, groups in CONVOLUTIONS:
        made = -(-side // step)
        x, w = Ref("x", image(n, i, side, side)), Ref("w", desc(o, i // groups, taps, taps))
        rest = (None, (step, step), (taps // 2, taps // 2), (1, 1), False, (0, 0), groups)
        call = OpCall("y", "aten.convolution.default", (x, w, *rest), {}, image(n, o, made, made))
        name = f"conv {n} x {i} x {side}² to {o} by {taps}², step {step}, {groups} groups"
        yield f"{name}, frozen", problem(call, "w", True)
        yield name, problem(call, "", True)


def attention() -> Iterator[tuple[str, Problem]]:
    for b, h, q, k, d, causal in ATTENTION:
        refs = Ref("q", desc(b, h, q, d)), Ref("k", desc(b, h, k, d)), Ref("v", desc(b, h, k, d))
        made = (desc(b, h, q, d), desc(b, h, q))
        op = "aten._scaled_dot_product_flash_attention_for_cpu.default"
        call = OpCall("y", op, (*refs, 0.0, causal), {}, made)
        yield (
            f"attention {b} x {h} x {q} x {k} x {d}{', causal' * causal}",
            problem(call, "", False),
        )


KINDS = {"mm": products, "conv": convolutions, "attention": attention}


def show_problems(kinds: list[str]) -> None:
    """A line for each problem, and in how many the rules are wrong."""
    backend, worst = CpuBackend(), []
    for kind in kinds:
        for name, each in KINDS[kind]():
            found = backend.candidates(each.call, each.constants)
            if found is None or not found.others:
                print(f"{name:<62} one candidate: {found.taken if found else '-'}", flush=True)
                continue
            times = measure.measure(each, backend, found.taken, found.others, compile_segment)
            rows = sorted((least(seconds), label) for label, seconds in times.items())
            ratio = least(times[found.taken]) / rows[0][0]
            worst.append(ratio)
            mark = "  <--" if ratio > WORSE else ""
            model = dict(found.estimates)
            told = ", ".join(_time(label, seconds, model.get(label)) for seconds, label in rows)
            print(f"{name:<62} {ratio:5.2f} {found.taken}{mark}; µs: {told}", flush=True)
            torch.compiler.reset()
    wrong = sum(ratio > WORSE for ratio in worst)
    mean = math.exp(sum(map(math.log, worst)) / len(worst))
    print(f"rules over fastest: {mean:.3f} in the geometric mean, worst {max(worst):.2f}; "
          f"{wrong} of {len(worst)} are off by more than a tenth")  # fmt: skip


def _time(label: str, seconds: float, modelled: float | None) -> str:
    """Microseconds of a candidate, and in brackets the cost model's."""
    return f"{label} {seconds * 1e6:.0f}" + (f" ({modelled * 1e6:.0f})" if modelled else "")


def call_model(name: str, mode: str, threads: int) -> None:
    """In a process of its own: seconds of the first call and of the fastest later one."""
    from dovetail.bench import cases

    torch.set_num_threads(threads)
    clock = measure.clock_for(threads)
    model, given = cases.make(name)
    run = torch.compile(model, backend="dovetail", mode=mode)
    begin = time.perf_counter()
    with torch.no_grad():
        run(*given)
        first, best, end = time.perf_counter() - begin, math.inf, time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            start = clock()
            run(*given)
            best = min(best, clock() - start)
    print(json.dumps([first, best]))


def show_models(names: list[str], threads: int, rounds: int) -> None:
    """Tuned over plain, both frozen, and the seconds of first calls."""
    for name in names:
        found: dict[str, list[list[float]]] = {"reduce-overhead": [], "max-autotune": []}
        with tempfile.TemporaryDirectory() as folder:
            for number in range(rounds):
                for mode, rows in found.items():
                    cache = f"{folder}/{mode}_{number}"
                    rows.append(_process(name, mode, threads, cache))
            again = _process(name, "max-autotune", threads, f"{folder}/max-autotune_0")
        firsts, bests = ([min(r[n] for r in rows) for rows in found.values()] for n in (0, 1))
        ratio, plain = bests[1] / bests[0], bests[0] * 1e3
        print(f"{name:<12} tuned over plain {ratio:.3f} ({plain:.2f} ms plain); "
              f"first call {firsts[0]:.1f} s plain, {firsts[1]:.1f} s tuned, "
              f"{again[0]:.1f} s in another process", flush=True)  # fmt: skip


def _process(name: str, mode: str, threads: int, cache: str) -> list[float]:
    command = [
        sys.executable,
        __file__,
        "--measure",
        name,
        "--mode",
        mode,
        "--threads",
        str(threads),
    ]
    env = {**os.environ, "DOVETAIL_CACHE": "1", "DOVETAIL_CACHE_DIR": cache}
    made = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return list(json.loads(made.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=["problems", "models"])
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS], default=[*KINDS])
    parser.add_argument("--models", nargs="+", default=[*MODELS])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--mode", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        call_model(given.measure, given.mode, given.threads)
        return
    torch.set_num_threads(given.threads)
    if given.only != ["models"]:
        show_problems(given.kinds)
    if given.only != ["problems"]:
        show_models(given.models, given.threads, given.rounds)


if __name__ == "__main__":
    main()
