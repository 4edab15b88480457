"""Layouts over a segment: where channels-last pays, what follows it, and what must not notice."""

import random

import pytest
import torch
from torch import nn

from dovetail.backends.cpu.backend import CpuBackend
from dovetail.file.processors import target_here
from dovetail.min_cut import FOREVER, MinCut
from dovetail.report.stages import cpu_segments
from dovetail.schedule import layout
from dovetail.schedule.cpu import pack_convolution
from dovetail.schedule.images import is_channels_last
from tests.differential import BACKENDS, assert_same, needs_code

aten = torch.ops.aten
NEEDS_MULTIPLY_ADDS = pytest.mark.skipif(
    "fma" not in target_here().features, reason="kernels of convolutions need multiply-adds"
)


class Function(nn.Module):
    """A function of its arguments, as a model without weights."""

    def __init__(self, fn, *weights):
        super().__init__()
        self.fn = fn
        self.weights = nn.ParameterList(weights)

    def forward(self, *args):
        return self.fn(*args, *self.weights)


def laid_out(fn, *args):
    """The one segment that runs at every call, weights being arguments."""
    (segment,) = cpu_segments(Function(fn), args)
    return segment


def reformats(segment):
    return sum(call.op == "aten.clone.default" for call in segment.calls)


def result(segment):
    """The call that makes the segment's last value of four dimensions."""
    return [c for c in segment.calls if all(len(d.shape) == 4 for d in c.outputs)][-1]


def moved(call):
    return all(map(is_channels_last, call.outputs))


def wide(x, w):
    return torch.relu(aten.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1))


X, W = torch.randn(1, 8, 32, 32), torch.randn(8, 8, 3, 3) / 8


def test_one_copy_leads_into_a_chain_of_convolutions():
    segment = laid_out(lambda x, w: wide(wide(wide(x, w), w), w).sum(1), X, W)
    assert reformats(segment) == 2  # of the input, and of the weights
    assert moved(result(segment))


def test_a_generated_kernel_writes_what_is_asked_for():
    """Relu gives an output of the segment, and needs no copy for it."""
    segment = laid_out(wide, X, W)
    assert reformats(segment) == 2
    (out,) = segment.outputs
    assert out.name == "relu"
    assert segment.calls[-1].outputs[0].is_contiguous


def test_what_needs_the_old_strides_gets_them():
    segment = laid_out(lambda x, w: wide(x, w).view(8, -1) + 1, X, W)
    assert reformats(segment) == 2  # relu writes in row-major order
    segment = laid_out(lambda x, w: wide(wide(x, w), w).flatten(1) + wide(x, w).sum(), X, W)
    assert all(out.desc.is_contiguous for out in segment.outputs)


def test_heavy_weights_that_vary_are_not_copied_at_each_call():
    x, w = torch.randn(1, 256, 4, 4), torch.randn(256, 256, 3, 3)
    assert reformats(laid_out(wide, x, w)) == 0


def test_heavy_weights_pay_for_large_images():
    x, w = torch.randn(1, 192, 48, 48), torch.randn(192, 192, 3, 3)
    assert reformats(laid_out(wide, x, w)) == 2


@pytest.mark.parametrize(("channels", "copies"), [(256, 1), (384, 0)])
def test_constant_weights_are_laid_out_once_unless_they_are_heavy(channels, copies, monkeypatch):
    """Of convolutions that are a library's."""
    for module in (layout, pack_convolution):
        monkeypatch.setattr(module, "own_choice", lambda *_, **__: None)
    x, w = torch.randn(1, channels, 7, 7), torch.randn(channels, channels, 3, 3)
    *once, every = cpu_segments(Function(wide, w), (x,))
    assert reformats(every) == copies  # of the image
    assert sum(map(reformats, once)) == copies


def test_group_norm_follows():
    def fn(x, w):
        y = torch.native_group_norm(wide(x, w), None, None, 1, 8, 1024, 2, 1e-5)[0]
        return wide(y, w)

    assert reformats(laid_out(fn, X, W)) == 2


def test_transposed_convolutions_are_laid_out():
    def fn(x, w):
        up = aten.convolution(x, w, None, [2, 2], [1, 1], [1, 1], True, [1, 1], 1)
        return torch.relu(up).sum(1)

    segment = laid_out(fn, X, W)
    assert moved(result(segment))
    assert_same(fn, X, W, backend="cpu", dynamic=False)


def spread(x, w, groups=1):
    side = w.shape[-1]
    up = aten.convolution(x, w, None, [side] * 2, [0, 0], [1, 1], True, [0, 0], groups)
    return torch.relu(up)


@pytest.mark.parametrize("side", [2, 4])
@NEEDS_MULTIPLY_ADDS
def test_images_that_are_spread_are_row_major_where_those_are_needed(side):
    """A kernel would write each element by itself, which takes longer than the library."""
    x, w = torch.randn(1, 64, 16, 16), torch.randn(64, 32, side, side) / 8
    segment = laid_out(spread, x, w)
    assert reformats(segment) == 0
    assert_same(spread, x, w, backend="cpu", dynamic=False)


@NEEDS_MULTIPLY_ADDS
def test_images_that_are_spread_among_convolutions_are_channels_last():
    def fn(x, w, v):
        return wide(spread(wide(x, v), w), v).sum(1)

    x, w = torch.randn(1, 32, 16, 16), torch.randn(32, 32, 2, 2) / 8
    v = torch.randn(32, 32, 3, 3) / 16
    segment = laid_out(fn, x, w, v)
    assert moved(result(segment))
    assert_same(fn, x, w, v, backend="cpu", dynamic=False)


def test_channels_that_are_spread_by_themselves_stay_row_major():
    x, w = torch.randn(1, 64, 16, 16), torch.randn(64, 1, 4, 4)
    assert reformats(laid_out(lambda x, w: spread(x, w, 64).sum(1), x, w)) == 0


def parts(x, w):
    left, right = aten.split_with_sizes(wide(x, w), [3, 5], 1)
    return torch.cat((wide(x, w)[:, 2:4], right * 2, left + 1), 1)


def test_parts_of_the_channels_follow():
    segment = laid_out(lambda x, w: parts(x, w).sum((2, 3)), X, W)
    assert reformats(segment) == 2
    assert moved(result(segment))
    assert_same(lambda x, w: parts(x, w) + 1, X, W, backend="cpu", dynamic=False)


@needs_code
def test_parts_of_the_channels_have_the_old_strides_where_those_are_needed():
    def fn(x, w):
        left, right = aten.split_with_sizes(wide(wide(x, w), w), [4, 4], 1)
        inner = left[:, 1:3, ::2]
        return left.view(4, -1) + 1, right.view(2, 2, -1), inner.sum(), inner.cos()

    assert_same(fn, X, W, backend="cpu", dynamic=False)


def resampled(x, w):
    """Every row and column twice, between two convolutions."""
    y, twice = wide(x, w), torch.arange(64) // 2
    return wide(aten.index.Tensor(y, [None, None, twice.unsqueeze(1), twice]) + 1, w)


def test_points_taken_of_an_image_are_laid_out_like_it():
    segment = laid_out(lambda x, w: resampled(x, w).sum(1), X, W)
    # Of the image, and of the weights for a kernel and, on some processors, for a library.
    assert reformats(segment) in (2, 3)
    assert all(moved(c) for c in segment.calls if c.op in ("aten.index.Tensor", "aten.add.Tensor"))
    assert_same(resampled, X, W, backend="cpu", dynamic=False)


@needs_code
def test_points_taken_keep_eagers_strides_where_those_are_needed():
    def fn(x, w):
        y, twice = wide(x, w), torch.arange(64) // 2
        y = aten.index.Tensor(y, [None, None, twice.unsqueeze(1), twice])
        return y.view(8, -1) + 1, wide(y, w), y

    assert_same(fn, X, W, backend="cpu", dynamic=False)


def test_sizes_that_vary_stay_as_they_are():
    sizes = ({0: torch.export.Dim("n", min=2, max=9)}, None)
    (segment,) = cpu_segments(
        Function(wide), (X.expand(3, -1, -1, -1), W), dynamic_shapes={"args": sizes}
    )
    assert reformats(segment) == 0


def test_training_graphs_stay_as_they_are(monkeypatch):
    asked = []
    monkeypatch.setattr(
        CpuBackend, "lay_out", lambda _, segment, once: asked.append(once) or segment
    )
    compiled = torch.compile(wide, backend="cpu", options={"cache": False})
    compiled(X.clone().requires_grad_(), W).sum().backward()
    assert not asked
    with torch.no_grad():
        compiled(X, W)
    assert len(asked) == 1


def test_ones_own_channels_last_model_is_left_alone():
    last = torch.channels_last
    args = X.to(memory_format=last), W.to(memory_format=last)
    segment = laid_out(wide, *args)
    assert reformats(segment) == 1  # of the weights, for a kernel
    assert all(moved(call) for call in segment.calls if call.op == "aten.convolution.default")


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=8, padding=1),
        nn.Hardswish(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 16, 4),
    ).eval()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_network_gives_what_eager_gives(backend):
    assert_same(model(), torch.randn(2, 3, 16, 16), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_have_eagers_strides(backend):
    convolution = nn.Conv2d(3, 8, 3)
    assert_same(lambda x: (convolution(x), convolution(x).relu()), X[:, :3], backend=backend)


class Unet(nn.Module):
    """Down, up by both ways of interpolating, with ways around."""

    def __init__(self):
        super().__init__()
        self.down, self.middle = self.block(3, 8), self.block(8, 16)
        self.up, self.out = self.block(24, 8), self.block(16, 4)

    @staticmethod
    def block(inner, outer):
        conv = nn.Conv2d(inner, outer, 3, padding=1)
        return nn.Sequential(conv, nn.GroupNorm(4, outer), nn.SiLU())

    def forward(self, x):
        a = self.down(x)
        b = self.middle(nn.functional.max_pool2d(a, 2))
        b = self.up(torch.cat((nn.functional.interpolate(b, scale_factor=2), a), 1))
        c = nn.functional.interpolate(b, scale_factor=0.75, mode="bilinear")
        a = nn.functional.interpolate(a, scale_factor=0.75)
        return self.out(torch.cat((c, a), 1))


class Decoder(nn.Module):
    """Transposed convolutions, channels in parts, weights as large as what they meet."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 32, 3), nn.Conv2d(16, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(32, 8, 4, 2, 1)
        self.out = nn.ConvTranspose2d(8, 4, 3, 2, output_padding=1, groups=2)

    def forward(self, x):
        left, right = self.first(x).chunk(2, 1)
        x = torch.cat((self.second(left), right.sigmoid()), 1)
        return self.out(nn.functional.leaky_relu(self.up(x))).tanh()


@needs_code
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_decoder_gives_what_eager_gives(batch, dtype):
    torch.manual_seed(0)
    model, x = Decoder().eval().to(dtype), torch.randn(batch, 8, 14, 14).to(dtype)
    if dtype == torch.float32:
        assert_same(model, x, backend="cpu", dynamic=False)
        return
    with torch.no_grad():  # bfloat16 is not rounded between fused operations
        found = torch.compile(model, backend="cpu", dynamic=False)(x)
        torch.testing.assert_close(found, model(x), atol=2e-2, rtol=2e-2)


@needs_code
@pytest.mark.parametrize("batch", [1, 3])
def test_a_unet_gives_what_eager_gives(batch):
    torch.manual_seed(0)
    assert_same(Unet().eval(), torch.randn(batch, 3, 32, 40), backend="cpu", dynamic=False)


STEPS = {
    "conv": lambda x, _: nn.functional.conv2d(x, WEIGHTS, padding=1),
    "depthwise": lambda x, _: nn.functional.conv2d(x, WEIGHTS[:, :1], padding=1, groups=8),
    "relu": lambda x, _: x.relu(),
    "add": torch.add,
    "cat": lambda x, y: torch.cat((x[:, 4:], y[:, :4]), 1),
    "pool": lambda x, _: nn.functional.max_pool2d(x, 3, 1, 1),
    "view": lambda x, _: (x.reshape(2, 4, -1) * 2).view(2, 8, 6, 5),
    "permute": lambda x, _: (x.permute(0, 1, 3, 2) + 1).transpose(2, 3),
    "mean": lambda x, _: x * x.mean((2, 3), keepdim=True),
    "parts": lambda x, _: torch.cat(x.split([3, 5], 1)[::-1], 1),
    "flip": lambda x, _: x.flip(2),
    "softmax": lambda x, y: x.softmax(1) + y,
    "group_norm": lambda x, _: nn.functional.group_norm(x, 2),
}
WEIGHTS = torch.randn(8, 8, 3, 3, generator=torch.Generator().manual_seed(0)) / 8


def random_network(seed):
    """Convolutions of small images, and between them what follows, mixes or fixes a layout."""
    rng = random.Random(seed)
    kinds = rng.choices([*STEPS], [6, 4] + [1] * (len(STEPS) - 2), k=12)
    plan = [(kind, rng.randrange(n + 1)) for n, kind in enumerate(kinds)]
    shown = [rng.randrange(1, 13) for _ in range(2)]

    def fn(x):
        values = [x]
        for kind, other in plan:
            values.append(STEPS[kind](values[-1], values[other]))
        return values[-1], values[shown[0]], values[shown[1]].sum(1)

    return fn


@needs_code
@pytest.mark.parametrize("seed", range(12))
def test_random_networks_give_what_eager_gives(seed):
    torch.manual_seed(seed)
    x = torch.randn(2, 8, 6, 5)
    assert_same(random_network(seed), x, backend="cpu", dynamic=False)


def test_a_cut_costs_least():
    """Against all ways to divide six things."""
    rng = random.Random(0)
    for _ in range(20):
        cut, costs = MinCut(), {}
        nodes = [cut.left, *range(6), cut.right]
        for _ in range(20):
            edge = tuple(rng.sample(nodes, 2))
            cost = rng.choice([1, 5, 20, 300])
            costs[edge] = costs.get(edge, 0) + cost
            cut.add(*edge, cost)

        def total(left, costs=costs):
            return sum(c for (a, b), c in costs.items() if a in left and b not in left)

        best = min(total({cut.left, *(n for n in range(6) if bits >> n & 1)}) for bits in range(64))
        assert cut.cost() == best
        assert total({cut.left, *cut.lefts()}) == best
        assert total({cut.left, *range(6)} - cut.rights()) == best


def test_some_things_are_never_apart():
    cut = MinCut()
    cut.add(cut.left, "a", 5)
    cut.add("a", "b", FOREVER)
    cut.add("b", cut.right, 3)
    assert cut.lefts() == {"a", "b"}
    cut.add(cut.left, cut.right, FOREVER)
    assert cut.cost() >= FOREVER


def test_no_more_on_a_side_than_need_be():
    cut = MinCut()
    for left, right in [(cut.left, "a"), ("a", "b"), ("b", cut.right)]:
        cut.add(left, right, 2)
    assert cut.lefts() == cut.rights() == set()
    cut.add("a", "b", 2)
    assert cut.cost() == 2
