"""What runs a segment whose tensors turn out not to be what the graph says of them.

Generated code relies on the dtype and shape that an operator's metadata promises, and some
operators (custom ones above all) describe their results wrongly. Such a segment runs call by call
on PyTorch, as it would have without us. A result in another layout only is copied by the runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from dovetail.ir.segment import Segment
from dovetail.runtime.executable import NOT_AS_PLANNED, Failure

if TYPE_CHECKING:
    from dovetail.runtime.interpreter import Interpreter


class CallByCall:
    """Runs a segment on PyTorch's operators; ``note`` is told why, once.

    ``segment`` is a function, so that calls nobody runs need not be read; ``draws`` says whether
    they draw random numbers.
    """

    def __init__(
        self, segment: Callable[[], Segment], draws: bool, note: Callable[[str], None]
    ) -> None:
        self.segment, self.draws, self.note = segment, draws, note
        self.interpreter: Interpreter | None = None
        self.noted = False

    def __call__(self, error: Failure, inputs: list[Any]) -> list[Any]:
        """The segment's outputs."""
        if self.interpreter is None:
            from dovetail.runtime.interpreter import Interpreter  # seldom needed

            self.interpreter = Interpreter(self.segment())
        results = self.interpreter(inputs)
        if not self.noted:  # where PyTorch raises too, the metadata is not to blame
            self.noted = True
            self.note(str(error))
        return results

    def rewinding(self, run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """``run`` such that where it fails the random numbers it drew can be drawn once more."""
        if not self.draws:
            return run
        generator = torch.default_generator

        def rewound(*inputs: Any) -> list[Any]:
            before = generator.get_state()
            try:
                return run(*inputs)
            except NOT_AS_PLANNED:
                generator.set_state(before)
                raise

        return rewound
