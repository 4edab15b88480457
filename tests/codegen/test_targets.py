"""Whole programs as on each processor this one can stand for, against float64 and eager.

Single kernels for every target meet each other in test_random_kernels, test_functions, test_tiles
and test_volume; here is what joins several, and what adds up in another order.
"""

import pytest
import torch

from dovetail.file.processors import PROCESSORS, processor_here
from tests.codegen.random_graphs import check
from tests.codegen.test_accuracy import HALF_ULP, REDUCTIONS
from tests.codegen.test_softmax import both, error
from tests.differential import assert_same
from tests.targets import family_targets

TARGETS = [name for name in family_targets() if PROCESSORS[name] <= processor_here()]


@pytest.fixture(params=TARGETS, autouse=True)
def _held(request, monkeypatch):
    monkeypatch.setenv("DOVETAIL_PROCESSOR", request.param)


def data(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_random_graphs():
    problems = [problem for seed in range(100, 104) if (problem := check(seed))]
    assert not problems, "\n".join(problems)


LENGTHS = (2, 7, 8, 9, 16, 17, 63, 64, 65, 255, 256, 1000, 4099)


def test_reductions_of_every_length():
    """Fewer elements than a vector, whole vectors, a remainder, several chunks."""
    names = ("sum", "mean", "var", "norm", "logsumexp", "softmax", "layer_norm")

    def program(xs):
        return [REDUCTIONS[name](x) for x in xs for name in names]

    xs = [data(3, n) + 0.5 for n in LENGTHS]
    ours, eager = torch.compile(program, backend="cpu", dynamic=False)(xs), program(xs)
    for mine, theirs, exact in zip(ours, eager, program([x.double() for x in xs]), strict=True):
        off, most = ((v.double() - exact).abs().max() / exact.abs().max() for v in (mine, theirs))
        assert off <= max(2 * most, 4 * HALF_ULP), (exact.shape, off, most)


def test_powers_of_a_softmax_that_are_denormal():
    """The smallest results are those of the whole sum's division, not zero."""
    x = torch.linspace(-80, 80, 20_000).expand(2, -1).contiguous()
    for name, ours, eager, exact in both(x, -1):
        assert error(ours, exact, name) <= max(1e-6, 2 * error(eager, exact, name)), name


PROGRAMS = {
    "scans": lambda x: (x.cumsum(-1), x.cumsum(0), x.cummax(-1)[0], x.cumprod(0)),
    "extremes": lambda x: (x.max(-1), x.argmin(0), x.amax(), x.flatten().argmax()),
    "layouts": lambda x: (x.t().contiguous(), x.reshape(3, -1, 13).transpose(1, 2) * 2),
    "halves": lambda x: (x.half() * 3, x.bfloat16().float() + 1, (x.half().float() * 2).bfloat16()),
    "integers": lambda x: ((x * 100).long() // 7, (x * 9).int() % 5, x.double().round().short()),
    "gathers": lambda x: (x[(x[:, 0] * 7).long().abs() % 39], x.flip(-1), x.roll(3, 0)),
    "padding": lambda x: torch.nn.functional.pad(x, (3, 5, 2, 1)) * 2,
    "pools": lambda x: torch.nn.functional.max_pool2d(x[None, None], 3, 2, 1),
    "booleans": lambda x: ((x > 0).any(-1), (x > -9).all(), (x > 0) & (x < 1), (x > 0).sum()),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    assert_same(PROGRAMS[name], data(39, 130), backend="cpu", dynamic=False)
