"""From calls to values: by its rule where one covers a call, else left to a library.

Whether a rule covers a call, and what it makes of it, depends on nothing but the operator, its
attributes and what is known of its tensors. So a rule runs once for all calls that agree in these:
its values are kept with placeholders for operands, and each call gets a copy for its own. Placing
a graph and planning its segments ask the same question, and so do the layers of a model.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dovetail.ir.call import OpCall, Ref, tensors
from dovetail.ir.segment import Segment
from dovetail.ir.tensor import TensorDesc
from dovetail.lower import all_rules
from dovetail.lower.contraction import Contraction
from dovetail.lower.portable import ASSERTIONS
from dovetail.lower.rules import Lower, Refused, Rule, problem
from dovetail.lower.values import (
    Computed,
    Host,
    LibraryCall,
    Source,
    Value,
    View,
    verify_value,
    with_operands,
)

log = logging.getLogger(__name__)

_MOST = 1 << 12  # calls whose lowering is kept; all are forgotten when there are more
_CALL = "@"  # the name of the call in what is kept
_KEPT: dict[object, Lowered] = {}


@dataclass(frozen=True)
class Lowered:
    """What a rule makes of calls that agree in all it depends on."""

    refusal: str  # why there is nothing
    operands: tuple[Value, ...] = ()
    made: tuple[Value, ...] = ()  # all that the rule made, operands before what reads them
    results: tuple[Value, ...] = ()
    paths: tuple[tuple[int, ...], ...] = ()  # of the results among those of the call
    tile: tuple[int, ...] = ()  # of its contractions' kernels, where measuring chose one
    # By Adapt and the call's candidate.
    adapted: dict[Hashable, Lowered] = field(default_factory=dict, compare=False)

    @staticmethod
    def of(
        operands: tuple[Value, ...],
        results: tuple[Value, ...],
        paths: tuple[tuple[int, ...], ...],
    ) -> Lowered:
        """Results over placeholders for operands, verified."""
        made = tuple(with_operands(results, set(operands)))
        for value in made:
            verify_value(value)
        return Lowered("", operands, made, results, paths)

    def replaced(self, results: tuple[Value, ...]) -> Lowered:
        """The same call with other results."""
        return Lowered.of(self.operands, results, self.paths)

    def fresh_names(self) -> Lower:
        """What names more values, none like those that are there."""
        return Lower(_count=max(map(_number, filter(_is_inner, self.made)), default=0))

    @cached_property
    def contractions(self) -> tuple[Contraction, ...]:
        """Those among what the rule made, in order."""
        return tuple(value for value in self.made if isinstance(value, Contraction))

    def copies(self, lower: Lower, call: OpCall, operands: Iterable[Value]) -> list[Value]:
        """The results for a call and its operands."""
        known: dict[Value, Value] = dict(zip(self.operands, operands, strict=True))
        for value in self.made:
            new = known[value] = copy.copy(value)
            new.origin = call.name
            if isinstance(new, View):
                new.rebase(known[new.base])
            elif isinstance(new, Computed):
                new.reads = tuple([known[r] for r in new.reads])
            if self.tile and isinstance(new, Contraction):
                new.tile = self.tile
        for value in sorted(filter(_is_inner, self.made), key=_number):
            known[value].name = lower.fresh(value.name.rpartition(".")[0])
        for value in self.made:
            if value.name.startswith(_CALL):
                known[value].name = call.name + value.name.removeprefix(_CALL)
        return [known[value] for value in self.results]


def _is_inner(value: Value) -> bool:
    return not value.name.startswith(_CALL)


def _number(value: Value) -> int:
    """When a value that is in no graph was named."""
    return int(value.name.rpartition(".")[2])


def lowered(call: OpCall, operands: dict[tuple[str, tuple[int, ...]], Value]) -> Lowered:
    """What there is for calls like this one, whose tensors are ``operands``."""
    found = all_rules().get(call.op.removeprefix("aten."))
    if found is None:
        return Lowered("no rule")
    try:
        key = found, call.op, *_key(call, operands)
        kept = _KEPT.get(key)
    except TypeError:  # an argument that has no hash, such as a subgraph
        return _lower(found, call, operands)
    if kept is None:  # another thread may be at the same: both make the same
        kept = _lower(found, call, operands)
        if len(_KEPT) >= _MOST:
            _KEPT.clear()
        _KEPT[key] = kept
    return kept


def _key(call: OpCall, operands: dict[tuple[str, tuple[int, ...]], Value]) -> Iterator[object]:
    """All that a rule may look at."""
    numbers = {key: n for n, key in enumerate(operands)}

    def part(arg: Any) -> object:
        if isinstance(arg, Ref):
            return numbers.get((arg.name, arg.path), arg.name), arg.desc
        if isinstance(arg, tuple):
            return tuple([part(a) for a in arg])
        return type(arg), repr(arg) if isinstance(arg, float) else arg  # 0.0 is not -0.0

    yield tuple([part(a) for a in call.args])
    yield tuple([(name, part(a)) for name, a in call.kwargs.items()])
    yield call.output
    for value in operands.values():
        yield value.dtype, value.shape, value.strides


def _lower(rule: Rule, call: OpCall, operands: dict[tuple[str, tuple[int, ...]], Value]) -> Lowered:
    """Run the rule on placeholders; one that fails covers nothing."""
    reason = problem(call)
    if reason:
        return Lowered(reason)
    held = {k: Source("", v.dtype, v.shape, v.strides) for k, v in operands.items()}
    try:
        result = rule(Lower(dict(held)), replace(call, name=_CALL))
        listed = (
            {(n,): v for n, v in enumerate(result)} if isinstance(result, tuple) else {(): result}
        )
        made = {path: value for path, value in listed.items() if value is not None}
        return Lowered.of(tuple(held.values()), tuple(made.values()), tuple(made))
    except Refused as refusal:
        return Lowered(str(refusal))
    except Exception as error:
        log.warning("the rule of %s failed", call.op, exc_info=True)
        return Lowered(f"its rule fails: {type(error).__name__}: {error}")


# What a target makes of a lowered call, whose candidate is the other argument: the same in other
# steps, or a refusal, for a library.
Adapt = Callable[[Lowered, str], Lowered]


def lowered_alone(call: OpCall) -> Lowered:
    """What there is for a call by what it says of its tensors."""
    operands: dict[tuple[str, tuple[int, ...]], Value] = {}
    for ref in call.refs():
        if isinstance(ref.desc, TensorDesc):
            desc = ref.desc
            operands[ref.name, ref.path] = Source(ref.name, desc.dtype, desc.shape, desc.strides)
    return lowered(call, operands)


def lower_call(lower: Lower, call: OpCall, adapt: Adapt) -> LibraryCall | list[Value]:
    """One call: by its rule where that covers it and it is not left to a library."""
    keys = dict.fromkeys((r.name, r.path) for r in call.refs())
    operands = {key: lower.values[key] for key in keys if key in lower.values}
    found = adapt(lowered(call, operands), call.candidate)
    if found.refusal:
        return _library(lower, call)
    results = found.copies(lower, call, operands.values())
    for path, value in zip(found.paths, results, strict=True):
        lower.values[call.name, path] = value
    return results


def _library(lower: Lower, call: OpCall) -> LibraryCall:
    reads = [lower.values[r.name, r.path] for r in call.refs() if (r.name, r.path) in lower.values]
    library = LibraryCall(call, reads)
    for path, desc in tensors(call.output):
        name = ".".join([call.name, *map(str, path)])
        lower.values[call.name, path] = Host(name, desc, library, path)
    return library


def lower_segment(segment: Segment, adapt: Adapt) -> tuple[Lower, list[Value | LibraryCall]]:
    """Every call as values, or left to a library, in order."""
    lower = Lower()
    order: list[Value | LibraryCall] = []
    for given in segment.inputs:
        if isinstance(given.desc, TensorDesc):
            desc = given.desc
            source = Source(given.name, desc.dtype, desc.shape, desc.strides)
            lower.values[given.name, ()] = source
    for call in segment.calls:
        if call.op in ASSERTIONS:
            continue
        result = lower_call(lower, call, adapt)
        if isinstance(result, LibraryCall):
            order.append(result)
        else:
            order += result
    return lower, order
