"""Two accelerators in one graph, what is kept on each, and the report held against their logs."""

import shutil
from collections import Counter

import pytest
import torch
from torch import nn

import dovetail
from dovetail import Support, history
from dovetail.backends.plugin.backend import plugin_backend
from dovetail.place.cost import is_free
from tests.models import GPT, ResNet
from tests.plugin.conftest import Accelerator

pytestmark = pytest.mark.e2e
PRODUCTS = {"aten.mm.default", "aten.addmm.default", "aten.bmm.default"}


def graphs():
    return [g for compilation in history.recent() for g in compilation.graphs]


def counted(name):
    """How often each operator is said to run on a backend, views aside."""
    return Counter(
        v.op for g in graphs() for v in g.verdicts if v.backend == name and not is_free(v.op)
    )


@pytest.fixture
def two(accel_path, tmp_path, monkeypatch):
    """The simulated device twice, from two files: one for products, one for the rest."""
    made = []
    for name in ("left", "right"):
        path = tmp_path / f"lib{name}.so"
        shutil.copy(accel_path, path)
        log = tmp_path / f"{name}.log"
        monkeypatch.setenv("ACCEL_LOG", str(log))
        backend = plugin_backend(path, name=name)
        backend().opened.close()
        backend().opened.native.open()  # reads the environment now
        made.append(Accelerator(backend, log))
    left, right = made

    class Products(left.backend):
        def supports(self, call):
            if call.op in PRODUCTS or is_free(call.op):
                return super().supports(call)
            return Support.no("products only")

    left.backend = Products
    yield left, right
    for each in made:
        each.library.close()


def step(model, *inputs):
    model.zero_grad()
    out = model(*inputs)
    (out if out.ndim == 0 else out.square().mean()).backward()
    return [out.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("make", [ResNet, GPT])
def test_two_accelerators_train_like_eager_and_the_report_is_true(two, make, dynamic):
    left, right = two
    model = make()
    batch = (torch.randint(50, (2, 12)), torch.randint(50, (2, 12)))
    inputs = (torch.randn(2, 3, 16, 16),) if make is ResNet else batch
    options = {"backends": [left.backend, right.backend]}
    compiled = torch.compile(model, backend="dovetail", options=options, dynamic=dynamic)
    expected = step(model, *inputs)
    left.log(), right.log()
    torch.testing.assert_close(step(compiled, *inputs), expected, rtol=1e-3, atol=1e-5)
    assert left.ran() == counted("left")
    assert right.ran() == counted("right")
    assert set(counted("left")) <= PRODUCTS
    assert counted("left")
    assert counted("right")["aten.add.Tensor"]


def test_values_go_from_one_device_to_the_other_and_are_counted(two):
    left, right = two
    options = {"backends": [left.backend, right.backend]}
    compiled = torch.compile(
        lambda x, w: torch.relu(x @ w) @ w, backend="dovetail", options=options
    )
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    torch.testing.assert_close(compiled(x, w), torch.relu(x @ w) @ w)
    left.log(), right.log()
    compiled(torch.randn(4, 8), torch.randn(8, 8))
    (graph,) = graphs()
    assert [s.backend for s in graph.segments] == ["left", "right", "left"]
    copies = {(c.source, c.target): c.count for c in graph.copies()}
    sent, fetched = left.copies()
    assert (copies["host", "left"], copies["left", "host"]) == (sent, fetched)
    sent, fetched = right.copies()
    assert (copies["host", "right"], copies["right", "host"]) == (sent, fetched) == (1, 1)


# ---- what stays on the device --------------------------------------------------------------------


class Scaled(nn.Module):
    """A parameter and two buffers."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16, bias=False)
        self.register_buffer("scale", torch.randn(16))
        self.register_buffer("shift", torch.randn(16), persistent=False)

    def forward(self, x):
        return torch.relu(self.linear(x) * self.scale + self.shift)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_buffers_stay_on_the_device_like_parameters(accel, grad):
    model = Scaled().requires_grad_(grad)
    compiled = torch.compile(model, backend=accel.name)

    def sent():
        x = torch.randn(4, 16)
        torch.testing.assert_close(compiled(x), model(x))
        return accel.copies()[0]

    assert [sent(), sent(), sent()] == [4, 1, 1]
    model.scale.mul_(2)
    assert [sent(), sent()] == [2, 1]
    model.shift = torch.randn(16)  # another tensor
    assert [sent(), sent()] == [2, 1]
    model.scale.data.mul_(2)  # which PyTorch does not count
    dovetail.refresh(model)
    assert [sent(), sent()] == [4, 1]


def test_a_buffer_that_the_model_writes_to_is_sent_when_it_changed(accel):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(16))

        def forward(self, x):
            self.seen.add_(1)
            return torch.relu(x * self.seen)

    model, reference = Counting(), Counting()
    compiled = torch.compile(model, backend=accel.name)
    for _ in range(3):
        x = torch.randn(4, 16)
        torch.testing.assert_close(compiled(x), reference(x))
    torch.testing.assert_close(model.seen, reference.seen)


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("make", [ResNet, GPT])
def test_the_report_counts_every_copy_that_the_device_logs(accel, make, train):
    model = make().train(train)
    batch = (torch.randint(50, (2, 12)), torch.randint(50, (2, 12)))
    inputs = (torch.randn(2, 3, 16, 16),) if make is ResNet else batch
    compiled = torch.compile(model, backend=accel.name)
    for _ in range(2):  # what stays on the device is sent at the first call
        accel.log()
        if train:
            step(compiled, *inputs)
        else:
            with torch.no_grad():
                compiled(*inputs)
    logged = [(line[0], int(line[1])) for line in accel.log() if line[0] in ("h2d", "d2h")]
    said = [copies for graph in graphs() for copies in graph.copies()]
    for direction, source in (("h2d", "host"), ("d2h", "accel_c")):
        sizes = [size for kind, size in logged if kind == direction]
        assert sum(c.count for c in said if c.source == source) == len(sizes)
        assert sum(c.bytes for c in said if c.source == source) == sum(sizes)


def test_no_weight_of_a_gpt_is_sent_twice(accel):
    model = GPT().eval()
    compiled = torch.compile(model, backend=accel.name)
    tokens = torch.randint(50, (3, 11))  # whose activations have other sizes than the weights
    with torch.no_grad():
        compiled(tokens)
        accel.log()
        compiled(tokens)
    sent = {int(line[1]) for line in accel.log() if line[0] == "h2d"}
    weights = {p.numel() * 4 for p in model.blocks.parameters() if p.ndim == 2}
    assert not sent & weights


def test_a_value_that_two_segments_take_is_sent_once(accel):
    def fn(x, y):
        h = torch.sin(y)  # made on the host, used on both sides of another host call
        return torch.relu(torch.cos(torch.relu(x + h)) * h)

    compiled = torch.compile(fn, backend=accel.name)
    x, y = torch.randn(4, 16), torch.randn(4, 16)
    torch.testing.assert_close(compiled(x, y), fn(x, y))
    accel.log()
    x, y = torch.randn(4, 16), torch.randn(4, 16)
    torch.testing.assert_close(compiled(x, y), fn(x, y))
    assert [s.backend for s in graphs()[0].segments] == ["aten", "accel_c", "aten", "accel_c"]
    assert accel.copies() == (3, 2)  # x, h and the cosine; the first relu and the result
    assert [c.count for c in graphs()[0].copies() if c.source == "host"] == [3]


def test_the_report_counts_what_the_device_logged(accel):
    model = Scaled().eval()
    compiled = torch.compile(model, backend=accel.name)
    with torch.no_grad():
        for _ in range(2):
            accel.log()
            compiled(torch.randn(4, 16))
    lines = [line for line in accel.log() if line[0] in ("h2d", "d2h")]
    said = {(c.source, c.target): c for c in graphs()[0].copies()}
    sizes = [int(line[1]) for line in lines if line[0] == "h2d"]
    there, back = said["host", "accel_c"], said["accel_c", "host"]
    assert (there.count, there.bytes) == (len(sizes), sum(sizes)) == (1, 256)
    assert (back.count, back.bytes) == (1, 256)


# ---- tensors that are where they should be -------------------------------------------------------


class Elsewhere(dovetail.KernelBackend):
    """Kernels for tensors on a torch device of their own."""

    name = "elsewhere"
    device = "meta"
    given = []  # noqa: RUF012 - shared on purpose

    @dovetail.kernel("aten.relu.default")
    def relu(x):
        Elsewhere.given.append(x)
        return torch.empty_like(x)


def test_tensors_of_a_device_of_its_own_are_handed_over_as_they_are():
    Elsewhere.given.clear()
    x = torch.empty(4, device="meta")
    compiled = torch.compile(
        lambda x: torch.relu(x), backend="dovetail", options={"backends": [Elsewhere]}
    )
    made = compiled(x)
    assert made.device.type == "meta"
    assert Elsewhere.given[0] is x
    (graph,) = graphs()
    assert graph.verdicts[0].backend == "elsewhere"
    assert graph.copies() == []


def test_copies_that_the_model_makes_are_counted():
    def fn(x):
        return torch.relu(x.to("meta"))

    compiled = torch.compile(fn, backend="dovetail", options={"backends": [Elsewhere]})
    compiled(torch.randn(6))
    (copies,) = graphs()[0].copies()
    assert (copies.source, copies.target, copies.count, copies.bytes) == ("cpu", "meta", 1, 24)


def test_host_memory_is_handed_over_as_it_is():
    seen = []

    class Host(dovetail.KernelBackend):
        name = "host_kernels"

        @dovetail.kernel("aten.relu.default")
        def relu(x):
            seen.append(x.data_ptr())
            return torch.relu(x)

    x = torch.randn(4)
    torch.compile(torch.relu, backend="dovetail", options={"backends": [Host]})(x)
    assert seen == [x.data_ptr()]
    assert graphs()[0].copies() == []
