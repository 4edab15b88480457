"""Kernel IR's operations as expressions of a C-like language."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from dovetail.ir.dtypes import DTYPES, FLOATS
from dovetail.ir.ops import CHECKS, OPERATIONS


class SourceOperations:
    """Expressions for operations, casts and numbers; operands are names of variables."""

    # What each computing type is called.
    names: ClassVar[Mapping[str, str]] = {}

    def function(self, name: str, dtype: str) -> str:
        """What a function of C's math library is called for this type."""
        raise NotImplementedError

    def apply(self, op: str, dtype: str, args: Sequence[str]) -> str:
        """An operation on operands of one type."""
        template = OPERATIONS[op].in_c(dtype)
        if "{" in template:
            bits = DTYPES[dtype].bits
            return template.format(*args, type=self.names[dtype], bits=bits, last=bits - 1)
        if template.isidentifier():
            return f"{self.function(template, dtype)}({', '.join(args)})"
        return f"{args[0]} {template} {args[1]}"

    def has(self, op: str) -> bool:
        """Whether the language has a word for an operation; others are expanded."""
        return bool(OPERATIONS[op].c) or op in ("cast", *CHECKS)

    def cast(self, value: str, have: str, want: str) -> str:
        """A conversion with C's rules, as ATen does it."""
        if have == want:
            return value
        if want == "bool":
            return f"({value} != 0)"
        # Out of range is undefined in C; the machine's own conversion is what eager shows then.
        small = have in FLOATS and want not in FLOATS and DTYPES[want].bits < 32
        middle = f"({self.names['int32']})" if small else ""
        return f"({self.names[want]}){middle}{value}"

    def number(self, value: float | int | bool, dtype: str) -> str:
        """A constant."""
        if dtype not in FLOATS:
            return self._integer(int(value), dtype)
        suffix = "f" if dtype == "float32" else ""
        if math.isnan(value) or math.isinf(value):
            text = "NAN" if math.isnan(value) else "INFINITY"
            return f"(({self.names[dtype]}){'-' if value < 0 else ''}{text})"
        return f"({float(value).hex()}{suffix})" if value < 0 else f"{float(value).hex()}{suffix}"

    def _integer(self, value: int, dtype: str) -> str:
        if dtype != "int64":
            return f"(({self.names[dtype]}){value})" if value < 0 else str(value)
        if value == -(2**63):
            return f"(-{2**63 - 1}L - 1L)"
        return f"({value}L)" if value < 0 else f"{value}L"
