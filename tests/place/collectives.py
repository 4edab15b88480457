"""One of two processes that compile what sends and receives: python -m … RANK FILE.

They meet in a file. Collectives in another order than the other process's would wait for ever or
mix up values.
"""

from __future__ import annotations

import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import dovetail


class Chip(dovetail.KernelBackend):
    name = "collectives_chip"

    @dovetail.kernel("aten.relu.default")
    def relu(x):
        return torch.relu(x)

    @dovetail.kernel("aten.mm.default")
    def mm(a, b):
        return a @ b


def several(x, w):
    """Five that data leaves in any order, with work of each backend and draws between them."""
    group = dist.group.WORLD
    a = functional.all_reduce(x @ w, "sum", group)
    b = functional.all_gather_tensor(x.relu(), 0, group)
    h = (x.sin() + 1).relu()
    c = functional.reduce_scatter_tensor(torch.cat([h, h]), "sum", 0, group)
    d = functional.broadcast(h * 2, 1, group)
    e = functional.all_reduce((a * torch.rand(4, 4)).relu(), "max", group)
    return a + e, b.relu(), c * d


def in_place(x, w):
    """As most programs write them."""
    y = x * 2
    dist.all_reduce(y)
    z = y.relu() @ w
    found = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(found, z)
    return z + found[0] - found[1], y


def check(fn, rank, options):
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(rank))
    w = torch.randn(4, 4, generator=torch.Generator().manual_seed(9))
    compiled = torch.compile(fn, backend="dovetail", options=options)
    for seed in range(3):
        torch.manual_seed(seed)
        expected = fn(x, w)
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(x, w), expected)


def train(rank, options):
    """Two steps of DistributedDataParallel, whose gradients are collectives."""
    wrap = torch.nn.parallel.DistributedDataParallel
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        layers = torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
        models.append(wrap(torch.nn.Sequential(*layers)))
    compiled = torch.compile(models[0], backend="dovetail", options=options)
    for step in range(2):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * rank + step))
        for run, model in ((compiled, models[0]), (models[1], models[1])):
            model.zero_grad()
            run(x).pow(2).sum().backward()
        mine, theirs = ([p.grad for p in model.parameters()] for model in models)
        torch.testing.assert_close(mine, theirs)


def main(rank, meeting):
    warnings.simplefilter("ignore", FutureWarning)  # newer names for the same collectives
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    mixed = {"backends": [Chip, "cpu"]}
    for options in ({"backends": ["cpu"]}, mixed, {**mixed, "check": True}):
        for fn in (several, in_place):
            torch.compiler.reset()
            check(fn, rank, options)
    train(rank, mixed)
    dist.destroy_process_group()
    print("equal")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
