"""Option ``check``: every segment runs a second time on PyTorch's operators, and is compared.

Where a result differs, the segment's calls are compiled one by one for the same backend and run on
the reference's values: the first whose result differs is named, with both values, and a script is
written that reproduces it alone. Where each is right by itself, ever longer beginnings of the
segment are tried: the call is named with which the difference appears.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dovetail.backend import Backend, Blob, Executable, Fallback
from dovetail.capture.ops import is_random, is_write, keeps_its_word, resolve_op
from dovetail.errors import DovetailError, WrongResult
from dovetail.history import Measured
from dovetail.ir import Arg, OpCall, Ref, Segment, TensorDesc
from dovetail.ir.call import format_desc
from dovetail.ir.segment import Input
from dovetail.runtime.interpreter import Interpreter
from dovetail.runtime.reproduce import write_script

# How far a result may be from the reference computed in double precision: so many times as far as
# PyTorch's own in the same precision, and so many rounding errors of the largest value.
TIMES, ROUNDINGS = 4.0, 32.0
Compile = Callable[[Backend, Segment], Blob]
Values = dict[Any, Any]  # by name and path


class Difference(NamedTuple):
    """Where a result differs most, and by how much."""

    place: tuple[int, ...]
    found: Any
    expected: Any
    why: str = ""

    def __str__(self) -> str:
        if self.why:
            return self.why
        at = f" at {list(self.place)}" if self.place else ""
        return f"{self.found!r} instead of {self.expected!r}{at}"


def can_compare(segment: Segment) -> bool:
    """Whether a second run gives the same and does nothing: no draws, writes, custom operators."""
    for call in segment.calls:
        op = resolve_op(call.op)
        if call.binds or call.op.startswith("higher_order.") or is_random(op) or is_write(op):
            return False
        if not keeps_its_word(op):
            return False
    return True


def undefined(segment: Segment) -> set[str]:
    """Values that ``empty`` leaves as memory held them before, and what depends on them."""
    found: set[str] = set()
    for call in segment.calls:
        name = call.op.removeprefix("aten.")
        if name.startswith(("empty", "new_empty")) or any(r.name in found for r in call.refs()):
            found.add(call.name)
    return found


class Compared(Executable):
    """A segment's code beside the reference; what it gives is the code's own."""

    def __init__(
        self, executable: Executable, segment: Segment, backend: Backend, compile_: Compile
    ) -> None:
        self.executable, self.segment, self.backend = executable, segment, backend
        self._compile = compile_
        self._reference = Interpreter(segment)
        self._undefined = undefined(segment)
        self.measured: Measured | None = executable.measured

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Run twice; WrongResult where the two differ."""
        given, own = [_copied(value) for value in inputs], list(inputs)
        found = self.executable(inputs)
        self._check_inputs(given, own)
        expected = self._reference([_copied(value) for value in given])
        exact = _exactly(self._reference, given, expected)
        for out, mine, other, truth in zip(
            self.segment.outputs, found, expected, exact, strict=True
        ):
            if isinstance(out, Ref) and out.name in self._undefined:
                continue
            difference = compare(mine, other, truth)
            if difference is not None:
                raise self._explain(given, out, difference)
        return found

    def fall_back_on(self, fallback: Fallback) -> None:
        """Have the executable do so."""
        self.executable.fall_back_on(fallback)

    def transfers(self) -> tuple[Sequence[int], Sequence[int]] | None:
        """The executable's own."""
        return self.executable.transfers()

    # ---- which call it is ------------------------------------------------------------------

    def _check_inputs(self, given: list[Any], own: list[Any]) -> None:
        """WrongResult where an input is not what it was: no call of the segment is a write."""
        for source, before, after in zip(self.segment.inputs, given, own, strict=True):
            if isinstance(after, torch.Tensor) and not _is_same(before, after):
                readers = [
                    c for c in self.segment.calls if any(r.name == source.name for r in c.refs())
                ]
                names = ", ".join(f"{call.op} (%{call.name})" for call in readers)
                problem = f"its input %{source.name} was written to, which {names} may only read"
                raise WrongResult(self.backend.name, problem)

    def _explain(self, given: list[Any], out: Arg, difference: Difference) -> WrongResult:
        values = _values(self.segment, given)
        for call in self.segment.calls:
            alone = None if call.name in self._undefined else self._alone(call, values)
            if alone is not None:
                return self._error(call, values, alone)
        for count in range(2, len(self.segment.calls) + 1):
            found = self._beginning(count, given)
            if found is not None:
                last = self.segment.calls[count - 1]
                return WrongResult(
                    self.backend.name,
                    f"{last} is wrong after the {count - 1} calls before it: {found}; each of "
                    f"them is right alone ({self.segment.name})",
                )
        return WrongResult(
            self.backend.name, f"{self.segment.name} gives {difference} for {_shown(out)}"
        )

    def _error(self, call: OpCall, values: Values, found: Difference) -> WrongResult:
        folder = Path(tempfile.mkdtemp(prefix="dovetail-check-"))
        script = write_script(folder, call, values, self.backend, str(found))
        shapes = ", ".join(format_desc(desc) for desc in call.inputs)
        return WrongResult(
            self.backend.name, f"{call.op} on {shapes} gives {found} (%{call.name})", str(script)
        )

    def _alone(self, call: OpCall, values: Values) -> Difference | None:
        """How one call differs from the reference on the reference's values; None: it does not."""
        refs = {(ref.name, ref.path): ref for ref in call.refs()}
        kinds = {i.name: i.kind for i in self.segment.inputs}
        names = {key: "_".join(map(str, (key[0], *key[1]))) for key in refs}
        inputs = [
            Input(names[key], ref.desc, kinds.get(ref.name, "tensor")) for key, ref in refs.items()
        ]
        given = [values[key] for key in refs]
        for each in self.segment.inputs:
            if each.kind == "size" and (each.name, ()) not in refs:
                inputs.append(each)
                given.append(values[each.name, ()])
        call = replace(
            call,
            args=tuple(_renamed(arg, names) for arg in call.args),
            kwargs={key: _renamed(arg, names) for key, arg in call.kwargs.items()},
        )
        part = Segment(f"{self.segment.name}_{call.name}", tuple(inputs), (call,), _results(call))
        return self._differs(part, given)

    def _beginning(self, count: int, given: list[Any]) -> Difference | None:
        calls = self.segment.calls[:count]
        if calls[-1].name in self._undefined:
            return None
        return self._differs(replace(self.segment, calls=calls, outputs=_results(calls[-1])), given)

    def _differs(self, part: Segment, given: Sequence[Any]) -> Difference | None:
        try:
            run = self.backend.load(self._compile(self.backend, part))
            found = run([_copied(value) for value in given])
        except DovetailError:  # it may only be able to run the whole
            return None
        reference = Interpreter(part)
        expected = reference([_copied(value) for value in given])
        exact = _exactly(reference, given, expected)
        differences = map(compare, found, expected, exact)
        return next((each for each in differences if each is not None), None)


# ---- comparing ---------------------------------------------------------------------------------


def compare(found: Any, expected: Any, exact: Any) -> Difference | None:
    """Where a value is further from the exact one than its precision explains."""
    if not isinstance(expected, torch.Tensor):
        return None if found == expected else Difference((), found, expected)
    if not isinstance(found, torch.Tensor):
        return Difference((), found, expected, f"a {type(found).__name__}, not a tensor")
    if found.shape != expected.shape or found.dtype != expected.dtype:
        shown = [f"{str(t.dtype)[6:]}{list(t.shape)}" for t in (found, expected)]
        return Difference((), found, expected, " instead of ".join(shown))
    if found.numel() == 0:
        return None
    if not expected.is_floating_point():
        return _worst(found, expected, found != expected)
    a, b, truth = (t.detach().double() for t in (found, expected, exact))
    same = (a == b) | (a.isnan() & b.isnan())
    finite = truth[truth.isfinite() & b.isfinite()]
    slack = (b - truth)[truth.isfinite() & b.isfinite()].abs().max().item() if len(finite) else 0.0
    largest = finite.abs().max().item() if len(finite) else 0.0
    allowed = TIMES * slack + ROUNDINGS * torch.finfo(expected.dtype).eps * largest
    error = torch.where(same, 0.0, (a - truth).abs())
    return _worst(found, expected, ~(error <= allowed), error)


def _worst(found: Any, expected: Any, wrong: Any, error: Any = None) -> Difference | None:
    if not bool(wrong.any()):
        return None
    weight = wrong.double() if error is None else torch.where(wrong, error.nan_to_num(1e308), -1.0)
    flat = int(weight.flatten().argmax())
    place = tuple(int(n) for n in torch.unravel_index(torch.tensor(flat), found.shape))
    return Difference(place, found[place].item(), expected[place].item())


def _is_same(a: Any, b: Any) -> bool:
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _copied(value: Any, *, wide: bool = False) -> Any:
    """A tensor of its own, in double precision where that is wanted."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if wide and value.is_floating_point():
        return value.double()
    return value.clone()


# ---- values and calls --------------------------------------------------------------------------


def _exactly(reference: Interpreter, given: Sequence[Any], expected: Sequence[Any]) -> Any:
    """The results in double precision, where the calls can be made in it."""
    try:
        return reference([_copied(value, wide=True) for value in given])
    except (RuntimeError, TypeError, AssertionError):  # an operator that insists on a type
        return expected


def _values(segment: Segment, given: Sequence[Any]) -> Values:
    """Every value that the reference computes, parts of results too."""
    outputs = tuple(Ref(call.name, call.output) for call in segment.calls)
    results = Interpreter(replace(segment, outputs=outputs))([_copied(v) for v in given])
    found: Values = {(i.name, ()): value for i, value in zip(segment.inputs, given, strict=True)}
    for call, result in zip(segment.calls, results, strict=True):
        found[call.name, ()] = result
        if isinstance(result, tuple | list):
            found |= {(call.name, (n,)): value for n, value in enumerate(result)}
    return found


def _renamed(arg: Arg, names: dict[Any, str]) -> Arg:
    if isinstance(arg, Ref):
        return Ref(names[arg.name, arg.path], arg.desc)
    return tuple(_renamed(a, names) for a in arg) if isinstance(arg, tuple) else arg


def _results(call: OpCall) -> tuple[Ref, ...]:
    if isinstance(call.output, TensorDesc):
        return (Ref(call.name, call.output),)
    parts = call.output if isinstance(call.output, tuple) else ()
    return tuple(
        Ref(call.name, desc, (n,)) for n, desc in enumerate(parts) if isinstance(desc, TensorDesc)
    )


def _shown(out: Arg) -> str:
    return f"{out}: {format_desc(out.desc)}" if isinstance(out, Ref) else str(out)
