"""What the backends share whose code comes from the rules of ``lower/``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dovetail.backend import Backend

if TYPE_CHECKING:
    from dovetail.ir import OpCall


class LoweringBackend(Backend):
    """A backend that wants graphs taken apart as far as there are rules, and no further."""

    def keeps_whole(self, call: OpCall) -> bool:
        """Library calls and operators with a rule of their own stay whole."""
        from dovetail.lower.whole import stays_whole

        return stays_whole(call)

    def decompositions(self) -> Mapping[Any, Callable[..., Any]]:
        """Core ATen's, and those of normalisations, losses and activations."""
        from dovetail.capture.decompose import core_decompositions, extra_decompositions

        return {**core_decompositions(), **extra_decompositions()}
