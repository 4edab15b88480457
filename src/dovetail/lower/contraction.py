"""Contractions: sums of products of two operands, as values of their own.

A matrix product, a convolution and each product of attention are one: two factors, each an operand
at an index (with what is done to an element before it is multiplied), dimensions that both share
and that are summed, and a type to sum in. What a call does with the sum is the expression of the
value that reads it. Whether a kernel or a library computes a contraction is up to the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dovetail.ir.affine import product
from dovetail.ir.size import Dim
from dovetail.lower.expression import (
    Bodies,
    Compute,
    Expression,
    InvalidExpression,
    Node,
    Place,
    Read,
)
from dovetail.lower.index_map import IndexMap, variables_of
from dovetail.lower.values import Reduction, Value


@dataclass(frozen=True, slots=True)
class Factor:
    """One of the two things that are multiplied."""

    operand: int
    index: IndexMap
    dims: frozenset[int]  # that it depends on, by its index or by its mask
    is_plain: bool  # whether each of its dimensions is one of the contraction's


class Contraction(Reduction):
    """The sum over ``dims`` of the products that ``body`` computes."""

    def __init__(
        self,
        name: str,
        source_shape: Sequence[Dim],
        dims: Sequence[int],
        body: Bodies | Expression,
        operands: tuple[Value, Value],
        dtype: str,
    ) -> None:
        super().__init__(name, dtype, "sum", source_shape, dims, body, operands, dtype)
        self.tile: tuple[int, ...] = ()  # as its kernel's

    @cached_property
    def factors(self) -> tuple[Factor, Factor]:
        """What is multiplied."""
        last = self._term
        if self.leaves_out:
            last = dict(self.expression.named)[last.uses[1]]
        if not isinstance(last, Compute) or last.op != "mul":
            raise InvalidExpression(f"{self!r} is no sum of products")
        left, right = (self._factor(name) for name in last.uses)
        return left, right

    @property
    def _term(self) -> Node:
        return self.expression.nodes[int(self.expression.results[0][1:])]

    @property
    def leaves_out(self) -> bool:
        """Whether some of the products are not summed."""
        return isinstance(self._term, Compute) and self._term.op == "where"

    def _factor(self, name: str) -> Factor:
        """The operand that a node reads, with all that it depends on."""
        nodes, stack, dims = dict(self.expression.named), [name], set[int]()
        found: list[Read] = []
        while stack:
            node = nodes[stack.pop()]
            stack += node.uses
            if isinstance(node, Read):
                found.append(node)
                dims |= variables_of(node.index.results)
            elif isinstance(node, Place):
                dims |= variables_of((node.index,))
        if len(found) != 1:
            raise InvalidExpression(f"a factor of {self!r} that is not of one operand")
        (read,) = found
        plain = read.mask is None and read.index.is_projection
        return Factor(read.operand, read.index, frozenset(dims), plain)

    @property
    def roles(self) -> tuple[str, ...]:
        """Of each dimension: "sum", "rows" of the left, "columns" of the right, "batch" of both."""
        left, right = (factor.dims for factor in self.factors)
        return tuple(
            "sum"
            if d in self.dims
            else "batch"
            if (d in left) == (d in right)
            else "rows"
            if d in left
            else "columns"
            for d in range(len(self.source_shape))
        )

    def extent(self, role: str) -> Dim:
        """How many elements the dimensions of a role have together."""
        return product(s for s, r in zip(self.source_shape, self.roles, strict=True) if r == role)

    def __str__(self) -> str:
        summed = ", ".join(f"d{d} < {self.source_shape[d]}" for d in self.dims)
        factors = " * ".join(f"{self.reads[f.operand].name}{f.index}" for f in self.factors)
        return f"{self.name}: {self.dtype}{list(self.shape)} = sum over {summed} of {factors}"
