"""Training with every optimiser of torch.optim, in each of its forms, gives eager's losses.

A model is compiled once for each backend and trained anew with each optimiser. After every step it
is also evaluated, by a graph that keeps weights (frozen) or shares their copies on a device with
the training graphs. The check of contents is off: the cheap one at each call has to notice it all.
"""

import copy
import inspect
from functools import cache

import pytest
import torch
from torch import nn

from dovetail import registry
from tests.plugin.conftest import accel, accel_path, compiler  # noqa: F401  # fixtures

pytestmark = pytest.mark.xdist_group("optimisers")  # one process computes what eager gives
STEPS = 20
F = nn.functional


class Net(nn.Module):
    """A convolution with batch norm, a scale that no library has a kernel for, and a product."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.scale = nn.Parameter(torch.rand(8, 4, 4) + 0.5)
        self.out = nn.Linear(128, 5)

    def forward(self, x, y):
        x = torch.tanh(self.norm(self.conv(x))) * self.scale
        return F.cross_entropy(self.out(x.flatten(1)), y)


def forms():
    """Each optimiser of torch.optim by name, with the arguments that choose its form."""
    for name, kind in sorted(vars(torch.optim).items()):
        if not inspect.isclass(kind) or kind is torch.optim.Optimizer:
            continue
        if issubclass(kind, torch.optim.Optimizer):
            taken = inspect.signature(kind).parameters
            yield name, kind, {"foreach": False} if "foreach" in taken else {}
            if "foreach" in taken:
                yield f"{name} foreach", kind, {"foreach": True}
            if "fused" in taken:
                yield f"{name} fused", kind, {"fused": True}
                yield f"{name} fused, lr a tensor", kind, {"fused": True, "lr": torch.tensor(0.01)}


def optimiser_of(kind, options, model):
    parameters = list(model.parameters())
    if kind.__name__ == "LBFGS":
        options = {"max_iter": 3}
    if kind.__name__ == "Muon":  # takes matrices alone
        parameters = [p for p in parameters if p.ndim == 2]
    return kind(parameters, **{"lr": 0.01, **options})


def train(model, run, kind, options, data, fixed):
    """The loss of each step, and after each of them the loss in evaluation.

    ``fixed``: batch norm's statistics stay as they are, as in fine-tuning; a write to them, which
    is counted, would have everything frozen made anew.
    """
    optimiser = optimiser_of(kind, options, model)
    losses = []

    def closure():
        optimiser.zero_grad()
        loss = run(*batch)
        loss.backward()
        if kind.__name__ == "SparseAdam":
            for parameter in model.parameters():
                parameter.grad = parameter.grad.to_sparse()
        return loss

    for batch in data:
        model.train(not fixed)
        loss = optimiser.step(closure)
        model.eval()
        with torch.no_grad():
            losses += [loss.item(), run(*batch).item()]
    return torch.tensor(losses, dtype=torch.float64)


def batches(dtype):
    torch.manual_seed(3)
    return [(torch.randn(16, 2, 6, 6).to(dtype), torch.randint(5, (16,))) for _ in range(STEPS)]


@cache
def net():
    torch.manual_seed(1)
    return Net()


@cache
def expected(fixed):
    """For each form of an optimiser, losses in float64, and how far eager's float32 strays.

    The second from the same weights, and from weights that differ in the last bit: Muon rounds to
    bfloat16, and where a rounding goes the other way the losses differ by 1e-4.
    """
    found = {}
    for name, kind, form in forms():
        eager, beside, exact = (copy.deepcopy(net()) for _ in range(3))
        with torch.no_grad():
            for p in beside.parameters():
                p.copy_(torch.nextafter(p, torch.tensor(torch.inf)))
        exact.double()
        losses = train(exact, exact, kind, form, batches(torch.float64), fixed)
        rounded = [train(m, m, kind, form, batches(torch.float32), fixed) for m in (eager, beside)]
        found[name] = losses, max((each - losses).abs().max() for each in rounded)
    return found


def differences(backend, options, fixed=False):
    """For each form of each optimiser that strays from float64 further than eager may: by how much.

    Eager's own error in float32 is the measure; a few steps amplify rounding, and stale weights
    show in the first digit.
    """
    ours, found = copy.deepcopy(net()), {}
    options = {"check_weights": False, "debug": False, **options}
    run = torch.compile(ours, backend=backend, options=options)
    for name, kind, form in forms():
        ours.load_state_dict(net().state_dict())
        ours.zero_grad()
        losses, allowed = expected(fixed)[name]
        error = (train(ours, run, kind, form, batches(torch.float32), fixed) - losses).abs().max()
        if not error <= 8 * allowed + 1e-6:
            found[name] = (float(error), float(allowed))
    return found


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors this small are slower on several, much slower where others use the processor."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def opencl():
    answer = registry.get_backend("opencl").available()
    if not answer:
        pytest.skip(answer.reason)


@pytest.mark.e2e
@pytest.mark.parametrize("freeze", [False, True], ids=["plain", "frozen"])
def test_on_the_processor(freeze):
    assert differences("cpu", {"freeze": freeze}, fixed=freeze) == {}


@pytest.mark.e2e
def test_on_a_plugin(accel):  # noqa: F811
    assert differences(accel.name, {}) == {}
    assert accel.ran()["aten.addmm.default"] >= 2 * STEPS


@pytest.mark.e2e
@pytest.mark.usefixtures("opencl")
def test_on_opencl():
    opened = registry.get_backend("opencl").opened
    before = opened.counters["launches"]
    assert differences("opencl", {"keep_small": True}) == {}
    assert opened.counters["launches"] >= before + 2 * STEPS


def test_every_optimiser_is_here():
    names = [name for name, _, _ in forms()]
    assert {"AdamW fused", "SGD foreach", "Adagrad", "LBFGS", "Muon", "SparseAdam"} <= {*names}
    assert len(names) >= 31
