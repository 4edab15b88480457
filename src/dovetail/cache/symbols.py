"""Symbolic sizes under names that do not depend on where PyTorch found them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sympy

from dovetail.capture._torch.symbols import (
    SymbolFacts,
    shape_env,
    sym_expr,
    symbol_facts,
    symbol_value,
)
from dovetail.errors import SizeError


class Symbols:
    """Symbols renamed ``s0``, ``s1``, … in the order in which a graph's inputs show them."""

    def __init__(self) -> None:
        self.env: Any = None
        self._renamed: dict[Any, Any] = {}  # PyTorch's symbol → ours
        self._texts: dict[Any, str] = {}

    def text(self, value: Any) -> str:
        """A SymInt, SymFloat or SymBool by its expression."""
        if self.env is None:
            self.env = shape_env(value)
        return self.expression(sym_expr(value))

    def expression(self, expr: Any) -> str:
        """A sympy expression in our names; its terms are in the order of those."""
        found = self._texts.get(expr)
        if found is None:
            new = [s for s in expr.free_symbols if s not in self._renamed]
            for symbol in sorted(new, key=str):  # one at a time but where a size is a compound
                self._rename(symbol)
            found = self._texts[expr] = str(expr.xreplace(self._renamed))
        return found

    def renamed(self, expr: Any) -> Any:
        """A sympy expression over our symbols; SizeError where it has others."""
        if unknown := [s for s in expr.free_symbols if s not in self._renamed or not s.is_integer]:
            raise SizeError(f"{expr} is about {unknown[0]}, which no input shows as a size")
        return expr.xreplace(self._renamed)

    def hints(self) -> dict[str, int]:
        """What each of our symbols was in the example call, but for those from data."""
        held = {} if self.env is None else symbol_facts(self.env).hints
        sizes = {s: ours for s, ours in self._renamed.items() if s in held and s.is_integer}
        return {str(ours): int(held[s]) for s, ours in sizes.items()}

    def values(self) -> dict[str, Any]:
        """The same symbols as SymInts."""
        known = self.hints()
        pairs = ((str(ours), s) for s, ours in self._renamed.items())
        return {name: symbol_value(self.env, s) for name, s in pairs if name in known}

    def facts(self, *, with_hints: bool) -> list[str]:
        """What is known of the symbols so far: ranges, hints, guards that hold, a line each."""
        if self.env is None or not self._renamed:
            return []
        facts = symbol_facts(self.env)
        lines = [self._fact(s, facts, with_hints) for s in list(self._renamed)]
        return lines + sorted(set(self._known(facts.known)))

    def _known(self, expressions: Iterable[Any]) -> Iterable[str]:
        for expr in expressions:
            symbols = getattr(expr, "free_symbols", ())
            if symbols and symbols <= self._renamed.keys():
                yield self.expression(expr)

    def _fact(self, symbol: Any, facts: SymbolFacts, with_hints: bool) -> str:
        low, high = facts.ranges.get(symbol, ("?", "?"))
        text = f"{self._renamed[symbol]} in [{low}, {high}]"
        if symbol in facts.like_sizes:
            text += ", a size"
        if symbol not in facts.hints:
            return f"{text}, from data"
        return f"{text}, {facts.hints[symbol]} in the example" if with_hints else text

    def _rename(self, symbol: Any) -> None:
        name = f"s{len(self._renamed)}"
        self._renamed[symbol] = sympy.Symbol(name, **symbol.assumptions0)
