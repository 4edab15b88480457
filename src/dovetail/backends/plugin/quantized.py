"""Quantised operations: dequantize → operation → quantize becomes one call on quantised tensors.

A graph in quantize/dequantize form says what it computes in floating point. Where a plug-in takes
an operation on the quantised tensors themselves, the parameters move from those calls to the
tensors' descriptors, and the calls go. What it does not take stays as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property

from dovetail.backends.plugin.call import is_view
from dovetail.ir import Arg, Input, OpCall, Ref, Segment, TensorDesc
from dovetail.ir.call import leaves
from dovetail.ir.quantization import InvalidQuantization, Quantization, verify_quantization
from dovetail.ir.strides import is_row_major

Accepts = Callable[[OpCall], bool]
# What a value stands for: the quantised value, and how.
Meaning = tuple[Ref, Quantization]

_PREFIX = "quantized_decomposed."
_NARROW = {"int8": "int4", "uint8": "uint4"}
_LIMITS = {"int4": (-8, 7), "uint4": (0, 15)}
_WIDE_ZEROS = ("int32", "int64")  # eager subtracts others in their own type, which may wrap


def is_conversion(op: str) -> bool:
    """Whether an operator quantises or dequantises."""
    return op.startswith((f"{_PREFIX}quantize_per", f"{_PREFIX}dequantize_per"))


def fold_quantized(segment: Segment, accepts: Accepts) -> Segment:
    """The segment with as many of its operations on quantised tensors as are accepted.

    Constants of eight bits whose numbers need four are tensors of four bits, where all that reads
    them accepts that; their inputs are still given as PyTorch has them.
    """
    if not any(is_conversion(call.op) for call in segment.calls):
        return segment
    narrow = _narrow(segment)
    while True:
        fold = _Fold(segment, accepts, narrow)
        folded = fold.run()
        wide = fold.read_otherwise(folded)
        if not wide:
            return folded
        narrow = {name: dtype for name, dtype in narrow.items() if name not in wide}


def _narrow(segment: Segment) -> dict[str, str]:
    """Constant inputs whose numbers may lie two in a byte, and the type that does."""
    found: dict[str, str] = {}
    constants = {i.name: i.desc for i in segment.inputs if i.kind == "constant"}
    for call in segment.calls:
        meaning = _dequantized(call)
        if meaning is None or meaning[0].name not in constants:
            continue
        desc = meaning[0].desc
        assert isinstance(desc, TensorDesc)
        if desc.dtype in _NARROW and desc.numel and is_row_major(desc):
            least, greatest = _LIMITS[_NARROW[desc.dtype]]
            if least <= meaning[1].least and meaning[1].greatest <= greatest:
                found[meaning[0].name] = _NARROW[desc.dtype]
    return found


# ---- parameters of conversions -----------------------------------------------------------------


def _dequantized(call: OpCall) -> Meaning | None:
    """What a dequantizing call says of its operand; None for others, or where it cannot be said."""
    name = call.op.removeprefix(f"{_PREFIX}de")
    given = call.args[0] if call.args else None
    if not isinstance(given, Ref) or not call.op.startswith(f"{_PREFIX}de"):
        return None
    made = _parameters(name, call, given.desc, call.output)
    return None if made is None else (given, made)


def _quantized(call: OpCall) -> Quantization | None:
    """The parameters of a quantizing call's result; None for other calls."""
    if not call.op.startswith(_PREFIX):
        return None
    real = call.args[0].desc if call.args and isinstance(call.args[0], Ref) else None
    return _parameters(call.op.removeprefix(_PREFIX), call, call.output, real)


def _parameters(name: str, call: OpCall, desc: object, real: object) -> Quantization | None:
    """The parameters of a tensor that a call converts from or to; both forms have them alike."""
    if not isinstance(desc, TensorDesc) or not isinstance(real, TensorDesc):
        return None
    rank, args = desc.rank, call.args
    block: tuple[int, ...]
    axes: tuple[int, ...]
    if name == "quantize_per_tensor.default":
        scale, zero, least, greatest = args[1:5]
        block, axes = (0,) * rank, ()
    elif name == "quantize_per_channel.default":
        scale, zero, axis, least, greatest = args[1:6]
        axes = (axis % rank if rank else 0,)
        block = tuple(int(n in axes) for n in range(rank))
    elif name == "quantize_per_channel_group.default" and rank == 2:
        scale, zero, least, greatest = args[1:5]
        length, group = desc.shape[1], args[6] if len(args) > 6 else 128
        if not isinstance(length, int):
            return None
        block, axes = (1, min(group, length)), (0, 1)  # as in eager a row may be one group
    else:
        return None
    if not _holds_blocks(scale, axes) or not _holds_blocks(zero, axes, integers=True):
        return None
    zero = 0 if zero is None else zero
    made = Quantization(block, _number(scale, float), _number(zero, int), least, greatest,
                        real.dtype, axes)  # fmt: skip
    try:
        verify_quantization(made, desc)
    except (InvalidQuantization, TypeError):
        return None
    return made


def _number(value: Arg, kind: type) -> Arg:
    return value if isinstance(value, Ref) else kind(value)


def _holds_blocks(value: Arg, axes: tuple[int, ...], *, integers: bool = False) -> bool:
    """Whether an argument is scales (or zero points) along these axes, or one number for all."""
    if not isinstance(value, Ref):
        return value is None or isinstance(value, int | float)
    desc = value.desc
    if not isinstance(desc, TensorDesc) or desc.rank != len(axes):
        return False
    return desc.dtype in (_WIDE_ZEROS if integers else ("float32", "float64"))


# ---- rewriting ---------------------------------------------------------------------------------


class _Fold:
    """One walk over a segment, with these constants narrowed."""

    def __init__(self, segment: Segment, accepts: Accepts, narrow: dict[str, str]) -> None:
        self.segment, self.accepts, self.narrow = segment, accepts, narrow
        self.means: dict[str, Meaning] = {}  # real values that are quantised ones dequantised
        self.descs: dict[str, TensorDesc] = {}  # quantised values as accepted calls take them
        self.renamed: dict[str, Ref] = {}  # results of quantizing calls that are gone
        self.retyped: dict[str, TensorDesc] = {}  # views between an operation and those calls
        self.bases: dict[str, Ref] = {}  # what quantised views look at
        self.accepted: set[str] = set()
        self.defined = {given.name for given in segment.inputs}

    @cached_property
    def users(self) -> dict[str, list[OpCall]]:
        """The calls that read each value."""
        found: dict[str, list[OpCall]] = {}
        for call in self.segment.calls:
            for name in {ref.name for ref in call.refs()}:
                found.setdefault(name, []).append(call)
        return found

    @cached_property
    def handed_out(self) -> set[str]:
        """The values that are results of the segment."""
        return {out.name for out in leaves(self.segment.outputs) if isinstance(out, Ref)}

    def run(self) -> Segment:
        """The folded segment."""
        made: list[OpCall] = []
        for call in self.segment.calls:
            made += self.call(call)
            self.defined |= {call.name, *(c.name for c in made[-1:])}
        outputs = tuple(self.now(out) for out in self.segment.outputs)
        inputs = tuple(self.input(given) for given in self.segment.inputs)
        calls = tuple(self.described(call) for call in _needed(made, outputs))
        outputs = tuple(map(self.described_arg, outputs))
        return replace(self.segment, inputs=inputs, calls=calls, outputs=outputs)

    def call(self, call: OpCall) -> Iterator[OpCall]:
        """What takes the place of a call."""
        if call.name in self.renamed:
            return
        call = self.with_args(call, self.now)
        if call.name in self.retyped:
            yield replace(call, output=self.retyped[call.name])
            return
        meaning = _dequantized(call)
        if meaning is not None:
            self.means[call.name] = self.narrowed(meaning)
        elif is_view(call) and call.args[0].name in self.means:
            yield from self.view(call)
        elif not is_conversion(call.op):
            yield self.operation(call)
            return
        yield call

    def now(self, arg: Arg) -> Arg:
        """A reference to what is there now."""
        return self.renamed.get(arg.name, arg) if isinstance(arg, Ref) else arg

    def narrowed(self, meaning: Meaning) -> Meaning:
        ref, quantization = meaning
        if ref.name not in self.narrow:
            return meaning
        assert isinstance(ref.desc, TensorDesc)
        return replace(ref, desc=replace(ref.desc, dtype=self.narrow[ref.name])), quantization

    def view(self, call: OpCall) -> Iterator[OpCall]:
        """The same view of the quantised value, where blocks can follow."""
        ref, quantization = self.means[call.args[0].name]
        assert isinstance(call.output, TensorDesc)
        assert isinstance(ref.desc, TensorDesc)
        seen = _seen(call, quantization, ref.desc)
        if seen is None:
            return
        desc = replace(call.output, dtype=ref.desc.dtype)
        name = f"{call.name}_quantized"
        yield replace(call, name=name, args=(ref, *call.args[1:]), output=desc)
        self.means[call.name] = Ref(name, desc), seen
        self.bases[name] = replace(ref, desc=replace(ref.desc, quantization=quantization))

    def operation(self, call: OpCall) -> OpCall:
        """A call on the quantised tensors, if the plug-in takes it."""
        folded = self.with_args(call, self.meant)
        ends = self.converted(call)
        for candidate in (
            None if ends is None else replace(folded, output=ends[0]),
            folded if folded is not call else None,
        ):
            if candidate is None or not self.agrees(candidate) or not self.accepts(candidate):
                continue
            if ends is not None and candidate.output is ends[0]:
                self.renamed |= ends[1]
                self.retyped |= ends[2]
                self.descs[call.name] = ends[0]
            for ref in candidate.refs():
                self.describe(ref)
            self.accepted.add(call.name)
            return candidate
        return call

    def describe(self, ref: Ref) -> None:
        """Note what a quantised operand stands for, and what it is a view of."""
        if not isinstance(ref.desc, TensorDesc) or ref.desc.quantization is None:
            return
        self.descs[ref.name] = ref.desc
        base = self.bases.get(ref.name)
        if base is not None and base.name not in self.descs:
            self.describe(base)

    def meant(self, arg: Arg) -> Arg:
        """The quantised tensor that an operand is the meaning of."""
        if not isinstance(arg, Ref) or arg.name not in self.means:
            return arg
        ref, quantization = self.means[arg.name]
        assert isinstance(ref.desc, TensorDesc)
        return replace(ref, desc=replace(ref.desc, quantization=quantization))

    def agrees(self, call: OpCall) -> bool:
        """Whether every quantised operand stands for what it stands for elsewhere."""
        return all(self.descs.get(r.name, r.desc) == r.desc for r in call.refs())

    def converted(
        self, call: OpCall
    ) -> tuple[TensorDesc, dict[str, Ref], dict[str, TensorDesc]] | None:
        """A call's result as the quantizing call behind it makes it, where nobody else reads it.

        With what takes the place of that call's result, and the views between, now quantised.
        """
        between: list[OpCall] = []
        at = call
        while True:
            users = self.users.get(at.name, [])
            if len(users) != 1 or at.name in self.handed_out:
                return None
            if not is_view(users[0]):
                break
            at = users[0]
            between.append(at)
        return self.end(call, between, users[0])

    def end(
        self, call: OpCall, between: list[OpCall], last: OpCall
    ) -> tuple[TensorDesc, dict[str, Ref], dict[str, TensorDesc]] | None:
        quantization = _quantized(last)
        made = last.output
        if quantization is None or not isinstance(made, TensorDesc):
            return None
        read_as_real = [r for r in last.refs() if r.name == (between or [call])[-1].name]
        known = all(ref.name in self.defined for ref in quantization.refs())
        usable = known and len(read_as_real) == 1
        if not usable or not isinstance(call.output, TensorDesc):
            return None
        if between and not quantization.is_per_tensor:
            return None
        retyped: dict[str, TensorDesc] = {}
        for step in between:
            assert isinstance(step.output, TensorDesc)
            retyped[step.name] = replace(step.output, dtype=made.dtype)
        output = replace(
            call.output,
            dtype=made.dtype,
            quantization=replace(quantization, block=(0,) * call.output.rank)
            if between
            else quantization,
        )
        final = between[-1].name if between else call.name
        desc = retyped[final] if between else output
        if (desc.shape, desc.strides) != (made.shape, made.strides):
            return None
        return output, {last.name: Ref(final, desc)}, retyped

    # ---- descriptors -----------------------------------------------------------------------

    def with_args(self, call: OpCall, change: Callable[[Arg], Arg]) -> OpCall:
        """A call with its arguments changed; itself where none is."""

        def changed(arg: Arg) -> Arg:
            return tuple(map(changed, arg)) if isinstance(arg, tuple) else change(arg)

        args = tuple(map(changed, call.args))
        kwargs = {key: changed(arg) for key, arg in call.kwargs.items()}
        same = all(a is b for a, b in zip(leaves(args), leaves(call.args), strict=False))
        return call if same and kwargs == call.kwargs else replace(call, args=args, kwargs=kwargs)

    def input(self, given: Input) -> Input:
        """An input as accepted calls take it."""
        return replace(given, desc=self.descs.get(given.name, given.desc))

    def described(self, call: OpCall) -> OpCall:
        """A call whose references say what is said where their values are defined."""
        output = self.descs.get(call.name, call.output)
        return replace(self.with_args(call, self.described_arg), output=output)

    def described_arg(self, arg: Arg) -> Arg:
        if not isinstance(arg, Ref) or arg.path or arg.name not in self.descs:
            return arg
        return arg if arg.desc == self.descs[arg.name] else replace(arg, desc=self.descs[arg.name])

    def read_otherwise(self, folded: Segment) -> set[str]:
        """The narrowed constants that something reads which has not accepted them, or nothing."""
        roots = {i.name: i.name for i in folded.inputs if _dtype(i.desc) in _LIMITS}
        found = set(self.narrow) - set(roots)
        for call in folded.calls:
            used = {roots[ref.name] for ref in call.refs() if ref.name in roots}
            if used and is_view(call) and _dtype(call.output) in _LIMITS:
                roots[call.name] = roots[call.args[0].name]
            elif call.name not in self.accepted:
                found |= used
        return found | {roots[name] for name in self.handed_out if name in roots}


def _dtype(desc: object) -> str:
    return desc.dtype if isinstance(desc, TensorDesc) else ""


def _seen(view: OpCall, quantization: Quantization, base: TensorDesc) -> Quantization | None:
    """The parameters of a view of a quantised tensor; None where blocks cannot follow."""
    assert isinstance(view.output, TensorDesc)
    whole = base.dtype not in _LIMITS  # of four bits, a view starts at the first element
    name = view.op.split(".")[1]
    order: Iterable[int] | None = None
    if name in ("alias", "detach"):
        order = range(base.rank)
    elif name == "t":
        order = reversed(range(base.rank))
    elif name == "permute":
        order = (d % base.rank for d in view.args[1])
    elif name == "transpose":
        a, b = (d % base.rank for d in view.args[1:3])
        order = ({a: b, b: a}.get(d, d) for d in range(base.rank))
    if order is not None:
        return quantization.permuted(tuple(order))
    if quantization.is_per_tensor and whole:
        return replace(quantization, block=(0,) * view.output.rank)
    return None


def _needed(calls: Iterable[OpCall], outputs: Iterable[Arg]) -> list[OpCall]:
    """The calls that outputs depend on, and those with effects."""
    wanted = Counter(ref.name for ref in leaves(tuple(outputs)) if isinstance(ref, Ref))
    kept: list[OpCall] = []
    for call in reversed(list(calls)):
        idle = is_conversion(call.op) or is_view(call)
        if call.name in wanted or not idle:
            kept.append(call)
            wanted.update(ref.name for ref in call.refs())
    return kept[::-1]
