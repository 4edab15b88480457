"""An accelerator with three kernels: what it supports, the program it runs, and fallback."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import dovetail
from dovetail.capture.ops import resolve_op


@dovetail.register_backend
class Accelerator(dovetail.KernelBackend):
    """The op registry: each kernel with the operator it runs and what it takes."""

    name = "accelerator"

    @dovetail.kernel("aten.mm.default", dtypes={"float32"}, ranks={2})
    def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:  # noqa: N805
        return a @ b  # your library here

    @dovetail.kernel("aten.relu.default", dtypes={"float32"})
    def relu(x: torch.Tensor) -> torch.Tensor:  # noqa: N805
        return x.clamp(min=0)

    @dovetail.kernel("aten._softmax.default", dtypes={"float32"})
    def softmax(x: torch.Tensor, dim: int, half: bool) -> torch.Tensor:  # noqa: N805
        return torch.softmax(x, dim)

    def supports(self, call: dovetail.OpCall) -> dovetail.Support:
        """Report on the op, and take it all the same: what has no kernel falls back here."""
        answer = super().supports(call)
        print(f"  {call.op:<22}", "supported" if answer else f"not supported: {answer.reason}")
        return dovetail.Support.yes()

    def keeps_whole(self, call: dovetail.OpCall) -> bool:
        return call.op in self.kernels

    def compile(self, segment: dovetail.Segment) -> dovetail.Blob:
        print(f"compiled to a linear program of {len(segment.calls)} instructions:")
        for number, call in enumerate(segment.calls):
            print(f"  {number}: {call}")
        return super().compile(segment)

    def choose(self, call: dovetail.OpCall) -> Callable[..., Any]:
        """What runs an instruction: its kernel, or PyTorch."""
        kernel = super().choose(call)
        kind = "kernel" if kernel else "fallback"
        return partial(dispatch, kind, call.name, kernel or resolve_op(call.op))


def dispatch(kind: str, name: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    print(f"  {kind:<9}{name}")
    return fn(*args, **kwargs)


def model(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.relu(x @ w + b) @ v, -1)


def main() -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(s) for s in [(2, 4), (4, 8), (8,), (8, 3)]]
    compiled = torch.compile(model, backend="accelerator")
    for number in ("first", "second"):
        print(f"{number} call:")
        result = compiled(*inputs)
        torch.testing.assert_close(result, model(*inputs))
    print(f"same as eager twice; compilations: {len(dovetail.history.recent())}")


if __name__ == "__main__":
    main()
