"""Fake tensors' modes and symbolic sizes: expressions, hints, guards, what is known of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


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


def size_guards() -> object:
    """What is known of symbolic sizes so far: it differs once something is decided by a size."""
    from torch._guards import TracingContext

    env = getattr(getattr(TracingContext.try_get(), "fake_mode", None), "shape_env", None)
    if env is None:
        return None
    return len(env.guards), dict(env.replacements), dict(env.var_to_range)
