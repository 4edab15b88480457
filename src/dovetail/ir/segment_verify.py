"""The segment verifier: values are defined before they are used, symbols before they are needed."""

from __future__ import annotations

from dovetail.errors import InvalidLayout, UnsupportedGraph
from dovetail.ir.call import Arg, Ref, leaves, tensors
from dovetail.ir.layout import verify_memory
from dovetail.ir.quantization import InvalidQuantization, verify_quantization
from dovetail.ir.real import Real
from dovetail.ir.segment import Segment
from dovetail.ir.size import Size
from dovetail.ir.tensor import Desc
from dovetail.ir.verify import requirement

KINDS = ("tensor", "constant", "shared", "size", "scalar")


class InvalidSegment(UnsupportedGraph):
    """A segment breaks a rule of the IR."""


_require = requirement(InvalidSegment)


def verify_segment(segment: Segment) -> Segment:
    """The segment, when it is well formed; InvalidSegment says what is wrong with it."""
    known: dict[str, Desc] = {}
    symbols = set(segment.symbols())
    for symbol, least, greatest in segment.ranges:
        possible = -(2**63) <= least <= greatest < 2**63
        _require(possible, f"the symbol {symbol} is in {least}..{greatest}")
    for given in segment.inputs:
        _require(given.kind in KINDS, f"the input {given.name} is of the unknown kind {given.kind}")
        _require(given.name not in known, f"two values are called {given.name}")
        _verify_layouts(given.desc, given.name)
        known[given.name] = given.desc
    for call in segment.calls:
        for arg in call.leaves():
            _verify_use(arg, known, symbols, call.name)
        for sub in call.subgraphs():
            verify_segment(sub)
        _require(call.name not in known, f"two values are called {call.name}")
        _verify_layouts(call.output, call.name)
        known[call.name] = call.output
        symbols |= {symbol for symbol, _ in call.binds}
    for out in leaves(segment.outputs):
        _verify_use(out, known, symbols, "the output")
    return segment


def _verify_layouts(desc: Desc, name: str) -> None:
    for _, tensor in tensors(desc):
        if tensor.quantization is not None:
            try:
                verify_quantization(tensor.quantization, tensor)
            except InvalidQuantization as error:
                raise InvalidSegment(f"{name}: {error}") from None
        if tensor.layout is not None:
            try:
                verify_memory(tensor, tensor.layout)
            except InvalidLayout as error:
                raise InvalidSegment(f"{name}: {error}") from None


def _verify_use(arg: Arg, known: dict[str, Desc], symbols: set[str], user: str) -> None:
    if isinstance(arg, Size | Real):
        _require(arg.symbols() <= symbols, f"{user} uses {arg}, which nothing binds")
    if not isinstance(arg, Ref):
        return
    _require(arg.name in known, f"{user} uses {arg} before it is defined")
    desc = known[arg.name]
    if desc is None and arg.path:  # PyTorch describes no result of the calls its partitioner adds
        return
    for index in arg.path:
        fits = isinstance(desc, tuple) and 0 <= index < len(desc)
        _require(fits, f"{user} uses {arg}, which {arg.name} does not have")
        assert isinstance(desc, tuple)
        desc = desc[index]
    fits = arg.desc == desc or arg.desc is None  # of a scale nothing is said where it is used
    _require(fits, f"{user} takes {arg} for {arg.desc}, which is {desc}")
