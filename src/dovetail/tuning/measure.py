"""Candidates run in turns on tensors of the right sizes and strides."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.backend import Backend, Blob, Run
from dovetail.ir.segment import Input, Segment, ValueKey
from dovetail.ir.tensor import TensorDesc
from dovetail.place.cut import PlacedSegment
from dovetail.place.prepare import take_apart
from dovetail.tuning.decide import is_steady, least
from dovetail.tuning.problem import Problem

log = logging.getLogger(__name__)
Compile = Callable[[Backend, Segment], Blob]

# Seconds of measuring a problem: where times are steady, and where they are not.
SECONDS = (0.2, 1.5)
ROUNDS = (8, 400)  # in which each candidate runs once: at least, at most
# Times the fastest so far, from which on a candidate is not run again, after so many rounds.
_HOPELESS, _TRIED = 3.0, 4
# How far a result may be from that of the rules' candidate: beside the root mean square of all its
# elements, for sums in another order and Winograd's algorithm; and roundings of its type.
_NEAR, _ROUNDINGS = 1e-4, 4


@dataclass(frozen=True)
class Prepared:
    """A candidate's code, ready to run on its inputs."""

    run: Run
    inputs: tuple[Any, ...]

    def __call__(self) -> Sequence[Any]:
        """The results."""
        return self.run([*self.inputs])


def measure(
    problem: Problem, backend: Backend, taken: str, others: Sequence[str], compile_: Compile
) -> dict[str, list[float]]:
    """Seconds of each candidate in each round; without those that fail, differ or are the same."""
    import torch

    from dovetail.capture._torch.state import no_dispatch_modes

    with no_dispatch_modes(), torch.no_grad():
        given = {i.name: _example(i, n) for n, i in enumerate(problem.segment.inputs)}
        prepared: dict[str, Prepared] = {}
        code: set[bytes] = set()
        expected: Sequence[Any] = ()
        for name in (taken, *others):
            made = _prepare(problem, backend, "" if name == taken else name, given, compile_)
            if made is None or made[1] in code:
                if name == taken:
                    return {}
                continue
            results = made[0]()
            if name == taken:
                expected = results
            elif not all(map(is_near, results, expected)):
                log.warning("%s gives other results for %s", name, problem.call)
                continue
            code.add(made[1])
            prepared[name] = made[0]
        return in_turns(prepared, taken, clock_for(torch.get_num_threads()))


def _prepare(
    problem: Problem,
    backend: Backend,
    candidate: str,
    given: Mapping[str, Any],
    compile_: Compile,
) -> tuple[Prepared, bytes] | None:
    """A candidate's code, and what tells it from others'; None: it has none."""
    try:
        segment, inputs = _packed(problem, backend, candidate, given)
        blob = compile_(backend, segment)
        return Prepared(backend.load(blob), tuple(inputs)), blob.data
    except Exception as error:  # a vendor's compiler may raise anything, and one may do without
        log.info("no code by %s for %s: %s", candidate or "the rules", problem.call, error)
        return None


def _packed(
    problem: Problem, backend: Backend, candidate: str, given: Mapping[str, Any]
) -> tuple[Segment, list[Any]]:
    """The segment as it runs at each call, and its inputs: what is prepared once is run."""
    from dovetail.runtime.interpreter import Interpreter

    before, once = problem.by(candidate), problem.constants
    after = backend.pack(before, once)
    known = {call.name for call in before.calls}
    added = [call for call in after.calls if call.name not in known]
    keys = tuple((i.name, ()) for i in after.inputs)
    placed = PlacedSegment(after, (backend,), keys, ())
    names = {*given, *known, *(call.name for call in added)}
    apart, rest = take_apart(placed, added, once, names, "prepared")
    values: dict[ValueKey, Any] = {(name, ()): value for name, value in given.items()}
    if apart is not None:
        made = Interpreter(apart.segment)([values[key] for key in apart.sources])
        values.update(zip(apart.results, made, strict=True))
    return rest.segment, [values[key] for key in rest.sources]


def _example(given: Input, seed: int) -> Any:
    """A tensor of an input's sizes, strides and type; what it holds is much like a model's."""
    import torch

    desc = given.desc
    assert isinstance(desc, TensorDesc)
    dims = zip(desc.shape, desc.strides, strict=True)
    size: int = 1 + sum((int(n) - 1) * int(stride) for n, stride in dims)  # type: ignore[arg-type,misc]
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, desc.dtype)
    if dtype.is_floating_point:
        flat = torch.randn(size, generator=generator).to(dtype)
    else:
        flat = torch.randint(0, 2, (size,), generator=generator).to(dtype)
    return flat.to(desc.device).as_strided(desc.shape, desc.strides)


def is_near(result: Any, expected: Any) -> bool:
    """Whether two results differ by errors of sums and roundings alone."""
    import torch

    if not isinstance(expected, torch.Tensor) or not expected.is_floating_point():
        return bool(torch.equal(result, expected))
    made, wanted = result.double(), expected.double()
    size = wanted.square().mean().sqrt()
    epsilon = _ROUNDINGS * torch.finfo(expected.dtype).eps
    return bool(((made - wanted).abs() <= _NEAR * size + epsilon * (wanted.abs() + size)).all())


def clock_for(threads: int) -> Callable[[], float]:
    """One thread's own time, in which other work does not count; that of several is elapsed."""
    return time.thread_time if threads == 1 else time.perf_counter


def in_turns(
    prepared: Mapping[str, Callable[[], Any]],
    taken: str,
    clock: Callable[[], float],
) -> dict[str, list[float]]:
    """Seconds of each in each round, until they are steady; of the hopeless some rounds' alone."""
    times: dict[str, list[float]] = {name: [] for name in prepared}
    if len(times) < 2:
        return times
    begin = clock()
    for number in range(1, ROUNDS[1] + 1):
        best = least([least(each) for each in times.values()])
        for name, run in prepared.items():
            if number <= _TRIED or least(times[name]) <= _HOPELESS * best:
                start = clock()
                run()
                times[name].append(clock() - start)
        spent = clock() - begin
        if spent > SECONDS[1] or (
            number >= ROUNDS[0] and spent > SECONDS[0] and is_steady(times, taken)
        ):
            break
    return times
