"""Measures one case on one rival in a process of its own, when it is told to.

``python -m dovetail.bench.worker CASE RIVAL THREADS HOW CLOCK`` prints what the first call took, a
line of JSON; then, for each line of its input, a number of seconds, what calls took for so long.
HOW is ``frozen``, ``unfrozen`` or ``training`` (a call is a step without its optimiser), CLOCK
``elapsed`` or ``processor``.
"""

from __future__ import annotations

import copy
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

Figures = dict[str, float]
CLOCKS: dict[str, Callable[[], float]] = {
    "elapsed": time.perf_counter,
    "processor": time.process_time,
}
# Of the largest value: beyond any rounding, so that a rival computes something else than eager.
WRONG = 1e-3
TIMES_EAGER = 4  # where eager's own gradients are further from float64's
SAMPLE_SECONDS = 2e-4  # between two readings of the clock, which takes up to a microsecond


def main(case: str, rival: str, threads: str, how: str, clock: str) -> None:
    """Compile, call, then measure when told to."""
    answer = answers()
    import torch

    from dovetail import registry
    from dovetail.bench import cases, rivals

    torch.set_num_threads(int(threads))
    registry.list_backends()
    trains = how == "training"
    fn, inputs = cases.make(case, trains=trains)
    torch.set_grad_enabled(trains)
    exact = results(_double(fn), tuple(_double(x) for x in inputs), trains)
    most = WRONG
    if trains:  # sums that decide a ReLU may be off by a rounding, and all before it then is
        most = max(most, TIMES_EAGER * error(results(copy.deepcopy(fn), inputs, trains), exact))
    torch.compiler.reset()  # imports Dynamo, which is no part of anybody's first call
    before = _peak_mb()
    started = time.perf_counter()
    run = rivals.prepare(rival, fn, inputs, int(threads), frozen=how == "frozen")
    run = step_of(run, fn) if trains else run
    result = [*leaves(run(*inputs)), *gradients(fn)]
    found = {"first": time.perf_counter() - started, "before_mb": before, "peak_mb": _peak_mb()}
    found["error"] = error(result, exact)
    if not found["error"] <= most:
        sys.exit(f"{rival} computes something else: {found['error']:.0e} of the largest value")

    def measure(seconds: float) -> Figures:
        times = steady(run, inputs, seconds, CLOCKS[clock])
        figures = {"best": min(times), "median": statistics.median(times)}
        return {**figures, "peak_mb": _peak_mb()}

    serve(answer, found, measure)


def step_of(run: Callable[..., Any], model: Any) -> Callable[..., Any]:
    """A step of training without its optimiser; it returns the loss."""

    def step(*inputs: Any) -> Any:
        model.zero_grad(set_to_none=True)
        loss = run(*inputs).float().square().mean()
        loss.backward()
        return loss.detach()

    return step


def results(fn: Any, inputs: tuple[Any, ...], trains: bool) -> list[Any]:
    """What eager gives, with the gradients where it is trained."""
    call = step_of(fn, fn) if trains else fn
    return [*leaves(call(*inputs)), *gradients(fn)]


def gradients(model: Any) -> list[Any]:
    """All gradients of a model as one tensor; none where it has not been trained."""
    import torch

    parameters = model.parameters() if isinstance(model, torch.nn.Module) else ()
    found = [p.grad.flatten() for p in parameters if p.grad is not None]
    return [torch.cat(found)] if found else []


def answers() -> Callable[[Figures], None]:
    """A function that writes figures to the output; what libraries print goes to the errors."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(figures: Figures) -> None:
        output.write(json.dumps(figures) + "\n")
        output.flush()

    return answer


def serve(
    answer: Callable[[Figures], None], found: Figures, measure: Callable[[float], Figures]
) -> None:
    """Tell what is found, then measure for the seconds of each line that comes."""
    answer(found)
    for line in sys.stdin:
        answer(measure(float(line)))


def leaves(value: Any) -> list[Any]:
    """The tensors of a result, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [leaf for item in value for leaf in leaves(item)]
    return [value] if hasattr(value, "dtype") else []


def error(result: list[Any], exact: list[Any]) -> float:
    """The largest difference from float64, relative to the largest value."""
    if len(result) != len(exact):
        raise ValueError(f"{len(result)} results where eager has {len(exact)}")
    worst = 0.0
    for r, e in zip(result, exact, strict=True):
        off, largest = (r.double() - e.double()).abs().max(), e.double().abs().max()
        worst = max(worst, float(off / largest.clamp_min(1e-30)))
    return worst


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _double(value: Any) -> Any:
    import torch

    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).double()
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if floating else value


def steady(
    run: Any, inputs: tuple[Any, ...], seconds: float, clock: Callable[[], float]
) -> list[float]:
    """Seconds per call, many times."""
    for _ in range(2):
        run(*inputs)
    calls, times = 1, list[float]()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        started = clock()
        for _ in range(calls):
            run(*inputs)
        times.append((clock() - started) / calls)
        calls = max(calls, round(SAMPLE_SECONDS / max(times[-1], 1e-6)))
    return times


if __name__ == "__main__":
    main(*sys.argv[1:6])
