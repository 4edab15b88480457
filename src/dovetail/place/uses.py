"""What a call depends on, worked out once."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.capture.from_fx import needed_symbols
from dovetail.ir import OpCall, Real, Ref, Segment, Size

_NONE: frozenset[str] = frozenset()
_PLAIN = (int, float, bool, str, type(None))


@dataclass(slots=True)
class Uses:
    """What a call needs, worked out once: values by reference, and symbols."""

    refs: list[Ref]
    symbols: frozenset[str]

    def names(self) -> list[str]:
        """The names of all of them."""
        found = [ref.name for ref in self.refs]
        return found + list(self.symbols) if self.symbols else found


def uses_of(call: OpCall) -> Uses:
    """The values and symbols a call depends on, those of its subgraphs included."""
    refs: list[Ref] = []
    for arg in call.args:
        if type(arg) is Ref:
            refs.append(arg)
        elif not isinstance(arg, _PLAIN):
            return _uses_of_any(call)
    return _uses_of_any(call) if call.kwargs else Uses(refs, _NONE)


def _uses_of_any(call: OpCall) -> Uses:
    refs: list[Ref] = []
    symbols = _NONE
    for leaf in call.leaves():
        if isinstance(leaf, Ref):
            refs.append(leaf)
        elif isinstance(leaf, Size | Real):
            symbols |= leaf.symbols()
        elif isinstance(leaf, Segment):
            symbols |= needed_symbols(leaf.calls, leaf.outputs) - set(leaf.symbols())
    return Uses(refs, symbols)
