"""A graph node by node: as Dynamo captures it, and as a backend of dovetail is given it."""

from __future__ import annotations

import torch
from torch import nn

import dovetail


class Model(nn.Module):
    """A linear layer and an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.relu(self.linear(x)), -1)


@dovetail.register_backend
def explore(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
    for node in gm.graph.nodes:
        value = node.meta.get("example_value")
        print(f"{node.name}: {node.op}")
        print(f"  target {getattr(node.target, '__name__', node.target)}")
        print(f"  args   {node.args}")
        print(f"  users  {[user.name for user in node.users]}")
        if isinstance(value, torch.Tensor):
            print(f"  value  {value.dtype} {list(value.shape)}")
    return gm


@dovetail.register_backend
class Ask(dovetail.KernelBackend):
    """Takes nothing, but prints every call it is asked about."""

    name = "ask"

    def supports(self, call: dovetail.OpCall) -> dovetail.Support:
        print(f"  {call}")
        return dovetail.Support.no("only looking")

    def keeps_whole(self, call: dovetail.OpCall) -> bool:
        return False


def main() -> None:
    model, x = Model().eval(), torch.randn(2, 4)
    with torch.no_grad():
        print("what Dynamo captured, node by node:")
        torch.compile(model, backend="explore")(x)
        print("the same model as functional ATen calls, as each backend is asked about them:")
        torch.compile(model, backend="ask")(x)
        print("and with the batch left open:")
        torch.compile(model, backend="ask", dynamic=True)(torch.randn(5, 4))


if __name__ == "__main__":
    main()
