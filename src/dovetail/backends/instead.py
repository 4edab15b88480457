"""What runs a segment whose tensors turn out not to be what the graph says of them.

Generated code relies on the dtype and shape that an operator's metadata promises, and some
operators (custom ones above all) describe their results wrongly. Such a segment runs call by call
on PyTorch, as it would have without us. A result in another layout only is copied by the runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.backends.executable import Failure
from dovetail.backends.interpreter import Interpreter
from dovetail.errors import GuardFailed
from dovetail.ir.segment import Segment, is_write


class CallByCall:
    """Runs a segment on PyTorch's operators; ``note`` is told why, once."""

    def __init__(self, segment: Segment, note: Callable[[str], None]) -> None:
        self.segment, self.note = segment, note
        self.writes = any(map(is_write, segment.all_calls()))
        self.interpreter: Interpreter | None = None
        self.noted = False

    def __call__(self, error: Failure, inputs: list[Any]) -> list[Any]:
        """The segment's outputs, unless what failed may have written to its inputs."""
        if self.writes and not isinstance(error, GuardFailed):
            raise error
        if self.interpreter is None:
            self.interpreter = Interpreter(self.segment)
        results = self.interpreter(inputs)
        if not self.noted:  # where PyTorch raises too, the metadata is not to blame
            self.noted = True
            self.note(str(error))
        return results
