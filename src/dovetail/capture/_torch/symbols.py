"""Fake tensors' modes and symbolic sizes: expressions, hints, guards, what is known of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.errors import SizeError


def fake_mode_of(values: Iterable[Any]) -> Any:
    """The FakeTensorMode in which a graph's values were made, or None."""
    from torch._guards import detect_fake_mode

    return detect_fake_mode(list(values))


def unbacked_bindings(node: Any) -> dict[str, tuple[tuple[str, int], ...]]:
    """Data-dependent symbols that a node defines, each with the way to read it off its result.

    A way is steps such as ("item", 0) into a tuple, ("size", -1) and ("item", 1) for a tensor's
    second size, ("storage_offset", -1), ("div", 4), ("bool", 0).
    """
    bindings = node.meta.get("unbacked_bindings") or {}
    return {str(symbol): tuple(map(_path_step, path)) for symbol, path in bindings.items()}


def _path_step(key: Any) -> tuple[str, int]:
    from torch.fx.experimental.symbolic_shapes import CallMethodKey, ConvertIntKey, DivideByKey
    from torch.utils._pytree import SequenceKey

    if isinstance(key, SequenceKey):
        return ("item", key.idx)
    if isinstance(key, CallMethodKey):
        return (key.name, -1)
    if isinstance(key, ConvertIntKey):
        return ("bool", 0)
    if isinstance(key, DivideByKey):
        return ("div", int(key.divisor))
    raise TypeError(f"unknown key {key!r} on the way to a data-dependent size")


def sym_expr(value: Any) -> Any:
    """The sympy expression of a SymInt, SymFloat or SymBool."""
    return value.node.expr


def size_hint(value: Any) -> int | None:
    """What a SymInt was in the example call; None where only the data tells."""
    return int(value.node.hint) if value.node.has_hint() else None


def symbol_range(value: Any) -> tuple[int | None, int | None]:
    """The least and the greatest value of a SymInt that is a symbol; None: there is no end."""
    found = value.node.shape_env.var_to_range.get(value.node.expr)
    ends = (found.lower, found.upper) if found is not None else (None, None)
    known: list[Any] = [end if getattr(end, "is_Integer", False) else None for end in ends]
    low, high = (None if end is None else int(end) for end in known)
    return low, high


def sympy_functions() -> Any:
    """The module of integer functions that PyTorch adds to sympy."""
    from torch.utils._sympy import functions

    return functions


class SymbolFacts(NamedTuple):
    """What a ShapeEnv knows of its symbols, as sympy expressions without the symbols replaced."""

    ranges: Mapping[Any, tuple[Any, Any]]
    hints: Mapping[Any, Any]
    known: Sequence[Any]  # guards, assertions and divisibilities
    like_sizes: frozenset[Any]


def symbol_facts(env: Any) -> SymbolFacts:
    """The facts of a ShapeEnv."""
    asserts = (each for held in env.deferred_runtime_asserts.values() for each in held)
    known = [*(guard.expr for guard in env.guards), *(each.expr for each in asserts)]
    return SymbolFacts(
        ranges={s: (r.lower, r.upper) for s, r in env.var_to_range.items()},
        hints=env.backed_var_to_val,
        known=[env.replace(expr) for expr in (*known, *env.divisible, *env.axioms)],
        like_sizes=frozenset(env.size_like),
    )


def shape_env(value: Any) -> Any:
    """The ShapeEnv of a SymInt, SymFloat or SymBool."""
    return value.node.shape_env


def symbol_value(env: Any, symbol: Any) -> Any:
    """A symbol of a ShapeEnv as a SymInt: what is asked of it becomes a guard."""
    return env.create_symintnode(symbol, hint=int(env.backed_var_to_val[symbol]))


class GuardCount:
    """What a ShapeEnv has decided about sizes so far; the current one, if none is given."""

    def __init__(self, env: Any = None) -> None:
        from torch._guards import TracingContext

        if env is None:
            env = getattr(getattr(TracingContext.try_get(), "fake_mode", None), "shape_env", None)
        self.env = env
        self.count = 0 if env is None else len(env.guards)
        backed = () if env is None else tuple(env.backed_var_to_val)
        self.known = {symbol: self._known(symbol) for symbol in backed}

    def _known(self, symbol: Any) -> tuple[Any, Any]:
        return self.env.replace(symbol), self.env.var_to_range.get(symbol)

    def added(self) -> list[Any]:
        """Guards added since, as sympy expressions; SizeError if something was decided without."""
        if self.env is None:
            return []
        guards = [guard.expr for guard in self.env.guards[self.count :]]
        guarded = {symbol for guard in guards for symbol in guard.free_symbols}
        for symbol, before in self.known.items():
            if self._known(symbol) != before and not guarded & before[0].free_symbols:
                raise SizeError(f"the size {symbol} was decided upon without a guard")
        return guards
