"""Convolutions that come with transformed weights, for Winograd's algorithm.

``python.winograd_convolution`` is ``aten.convolution`` with two more arguments: weights as the
algorithm takes them and the side of its tiles. Whoever has no use for these computes the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.ir.size import Dim
from dovetail.lower.contraction import Contraction
from dovetail.lower.expression import Bodies, Expression
from dovetail.lower.values import Value

NAME = "python.winograd_convolution"


class WinogradContraction(Contraction):
    """The sums of such a convolution; transformed weights are its last operand."""

    def __init__(
        self,
        name: str,
        source_shape: Sequence[Dim],
        dims: Sequence[int],
        body: Bodies | Expression,
        operands: tuple[Value, Value, Value],
        dtype: str,
        geometry: tuple[int, tuple[int, ...], tuple[int, ...]],
    ) -> None:
        """``geometry``: the side of a tile of results; the image's padding and sizes."""
        super().__init__(name, source_shape, dims, body, operands, dtype)  # type: ignore[arg-type]
        self.size, self.pads, self.extents = geometry

    @property
    def transformed(self) -> Value:
        """Weights: panels, points, channels of the image, channels of a panel."""
        return self.reads[2]
