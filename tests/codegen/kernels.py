"""Kernels of real programs, for tests of the stages behind lowering."""

from contextlib import contextmanager
from unittest.mock import patch

import torch

from dovetail import history
from dovetail.backends.cpu import program as cpu_program
from dovetail.capture.from_fx import segment_of
from dovetail.ir.target import TARGETS
from dovetail.schedule.build import Built
from dovetail.schedule.plan import make_plan
from tests.differential import assert_same


def plan_of(fn, *args, backend="cpu"):
    """The plan of a function's inference graph."""
    from torch._functorch.aot_autograd import aot_module_simplified

    from dovetail import registry
    from dovetail.capture.decompose import keeping_claimed

    owner = registry.get_backend(backend)
    found = []

    def compiler(gm, _):
        found.append(make_plan(segment_of(gm, "test"), TARGETS["x86-64-v4"]))
        return gm

    def entry(gm, inputs):
        table = keeping_claimed([(owner.decompositions(), owner.keeps_whole)])
        return aot_module_simplified(gm, inputs, fw_compiler=compiler, decompositions=table)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(fn, backend=entry, dynamic=False)(*args)
    return found[-1]


def kernels_of(fn, *args):
    """The kernels of a function, in order."""
    return [step.kernel for step in plan_of(fn, *args).steps if isinstance(step, Built)]


@contextmanager
def plans_made():
    """The plans that the cpu backend makes meanwhile."""
    made = []

    def spy(*args, **kwargs):
        made.append(make_plan(*args, **kwargs))
        return made[-1]

    with patch.object(cpu_program, "make_plan", spy):
        yield made


def assert_generated(fn, *args, backend="cpu", **options):
    """The same as eager, and nothing left to a library."""
    history.clear()
    with plans_made() as plans:
        assert_same(fn, *args, backend=backend, **options)
    left = [step for plan in plans for step in plan.steps if not isinstance(step, Built)]
    placed = {v.backend for c in history.recent() for g in c.graphs for v in g.verdicts}
    assert plans or "hit" in {v.state for c in history.recent() for v in c.cache}
    assert not left
    assert placed == {"cpu"}


def rotary(x, cos, sin):
    """Halves swapped, one negated: a cat of views of a norm."""
    y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
    a, b = y.chunk(2, -1)
    return y * cos + torch.cat((-b, a), -1) * sin


PROGRAMS = {
    "add": (lambda x, y: x + y, (torch.randn(4, 5), torch.randn(5))),
    "gelu": (lambda x: torch.nn.functional.gelu(x * 2 + 1), (torch.randn(3, 70),)),
    "softmax": (lambda x: torch.softmax(x, -1), (torch.randn(6, 33),)),
    "layer_norm": (
        lambda x, w: torch.nn.functional.layer_norm(x, (48,), w),
        (torch.randn(5, 48), torch.randn(48)),
    ),
    "column_sum": (lambda x: (x * x).sum(0), (torch.randn(7, 20),)),
    "cumsum": (lambda x: (x * 2).cumsum(-1) - 1, (torch.randn(5, 40),)),
    "cumsum_column": (lambda x: x.cumsum(0).relu(), (torch.randn(40, 5),)),
    "suffix_sums": (lambda x: x.flip(1).cumsum(1).flip(1) * x, (torch.randn(4, 37),)),
    "cummax": (lambda x: x.cummax(1)[1], (torch.randn(3, 21),)),
    "argmax": (lambda x: x.argmax(1), (torch.randn(4, 19),)),
    "gather": (lambda x, i: x[i] * 2, (torch.randn(9, 4), torch.tensor([3, 0, 8]))),
    "cat": (lambda x, y: torch.cat([x, -y], 1), (torch.randn(3, 5), torch.randn(3, 9))),
    "rotary": (rotary, (torch.randn(20, 160), torch.randn(160), torch.randn(1, 160))),
    "pad": (lambda x: torch.nn.functional.pad(x, (3, 2)) * 2, (torch.randn(16, 80),)),
    "cross_entropy": (
        torch.nn.functional.cross_entropy,
        (torch.randn(6, 40), torch.randint(0, 40, (6,))),
    ),
    "where": (lambda x: torch.where(x > 0, x, x.exp()), (torch.randn(17),)),
    "transpose": (lambda x, y: x.t() + y, (torch.randn(5, 8), torch.randn(8, 5))),
    "integers": (lambda x: (x * 3 - 1) // 4 % 7, (torch.arange(-20, 20),)),
}
