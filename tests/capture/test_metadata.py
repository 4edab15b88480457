"""Descriptions of results that PyTorch's fake tensors get wrong, held against its kernels."""

from itertools import permutations, product

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import dovetail
from dovetail.capture.from_fx import describe
from dovetail.capture.metadata import _corrected

aten = torch.ops.aten
TYPES = [(torch.bfloat16,) * 2, (torch.float16,) * 2, (torch.float32,) * 2]
TYPES += [(torch.bfloat16, torch.float32)]


def assert_described(op, *args):
    mode = FakeTensorMode()
    fake = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
    with mode:
        promised = _corrected(op, tuple(fake), op(*fake))
    assert describe(promised) == describe(op(*args))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("inputs", "parameters"), TYPES)
def test_batch_norm(inputs, parameters, training):
    x = torch.ones(2, 3, 4, 4, dtype=inputs).to(memory_format=torch.channels_last)
    weight, bias, mean, var = (torch.ones(3, dtype=parameters) for _ in range(4))
    given = (x, weight, bias, mean, var)
    assert_described(aten._native_batch_norm_legit_functional.default, *given, training, 0.1, 1e-5)
    assert_described(aten.native_batch_norm.default, *given, training, 0.1, 1e-5)
    assert_described(aten._batch_norm_with_update_functional.default, *given, 0.1, 1e-5)
    assert_described(aten._native_batch_norm_legit.no_stats, x, weight, bias, True, 0.1, 1e-5)
    assert_described(aten._native_batch_norm_legit.no_stats, x, None, None, True, 0.1, 1e-5)


@pytest.mark.parametrize("op", [aten._embedding_bag, aten._embedding_bag_forward_only])
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_embedding_bags(op, mode, dtype):
    ids, offsets = torch.tensor([1, 0, 2, 2, 1, 3]), torch.tensor([0, 2, 5])
    given = (torch.ones(4, 3, dtype=dtype), ids, offsets, False, mode, False)
    assert_described(op.default, *given)
    assert_described(op.default, *given, None, True)
    assert_described(op.default, *given, None, False, 1)
    if mode == 0:
        assert_described(op.default, *given, torch.ones(6, dtype=dtype))


def test_views_of_one_image():
    """The stride of a batch of one decides whether PyTorch takes the image for channels-last."""
    rows = torch.ones(1, 126, 8).mT
    assert_described(aten.view.default, rows, [1, 8, 14, 9])
    assert_described(aten.view.default, rows, [8, 1, 126])
    assert_described(aten._unsafe_view.default, torch.ones(2, 1, 6).mT, [2, 1, 6, 1, 1])


def test_views_of_every_layout():
    for shape, order in product([(1, 4, 6), (4, 1, 6), (2, 6, 1)], permutations(range(3))):
        x = torch.ones(shape).permute(order)
        for sizes in [(*x.shape, 1), (1, *x.shape), (x.shape[0], 1, *x.shape[1:], 1), (1, 2, -1)]:
            if not x.reshape(sizes).is_contiguous():  # others say little by their strides
                assert_described(aten.reshape.default, x, sizes)
                assert_described(aten.view.default, x, sizes)


def test_angles():
    numbers = torch.ones(4, 5, dtype=torch.complex64).mT
    assert_described(aten.angle.default, numbers)
    assert_described(aten.angle.default, numbers.real)


class Reshaped(nn.Module):
    """Rows as one image, which eager takes for contiguous, and two images, channels-last."""

    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)

    def forward(self, rows):
        return self.up(rows.mT.unflatten(2, (14, -1)))


@pytest.mark.parametrize("backend", ["dovetail", "aten", "reference"])
@pytest.mark.parametrize("count", [1, 2])
def test_convolutions_of_reshaped_rows_are_laid_out_as_eagers(backend, count):
    model, rows = Reshaped(), torch.rand(count, 126, 8)
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        assert compiled(rows).stride() == model(rows).stride()
        torch.testing.assert_close(compiled(rows), model(rows))


@pytest.mark.parametrize("backend", ["dovetail", "reference"])
def test_gradients_of_one_normalised_image_are_right(backend):
    """PyTorch's kernel reads a gradient with such strides wrongly; by its formula it is right."""

    def rows(x):
        return F.batch_norm(x, None, None, training=True).flatten(2).mT.tanh() @ weight

    torch.manual_seed(0)
    weight = torch.rand(3, 4, dtype=torch.float64)
    x = torch.rand(1, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(torch.compile(rows, backend=backend), (x,))


@pytest.mark.parametrize("backend", ["dovetail", "aten"])
def test_gradients_of_dropout_are_laid_out_as_eagers(backend):
    grad, mask = torch.rand(2, 3, 5).mT, torch.rand(2, 5, 3) > 0.5
    backward = aten.native_dropout_backward
    found = torch.compile(backward, backend=backend)(grad, mask, 2.0)
    assert found.stride() == backward(grad, mask, 2.0).stride()
    torch.testing.assert_close(found, backward(grad, mask, 2.0))


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.EmbeddingBag(4, 3, mode="sum", dtype=torch.bfloat16)
        self.norm = nn.BatchNorm1d(3, dtype=torch.bfloat16)

    def forward(self, ids):
        return self.norm(self.bags(ids)), self.norm.running_mean + 1


@pytest.mark.parametrize("backend", ["aten", "reference"])
def test_a_file_keeps_its_promises(backend, tmp_path):
    ids = torch.tensor([[1, 0], [2, 2], [1, 3]])
    torch.manual_seed(0)
    dovetail.export(Bags(), (ids,), backend=backend).save(tmp_path / "bags.dvt")
    loaded = dovetail.load(tmp_path / "bags.dvt", trust=True)
    torch.manual_seed(0)
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids), Bags()(ids))


@pytest.mark.parametrize("backend", ["aten", "reference"])
def test_training(backend):
    ids = torch.tensor([[1, 0], [2, 2], [1, 3]])
    seen = []
    for wrap in (lambda m: m, lambda m: torch.compile(m, backend=backend)):
        torch.manual_seed(0)
        model = Bags()
        wrap(model)(ids)[0].square().sum().backward()
        seen.append([p.grad for p in model.parameters()] + list(model.buffers()))
    torch.testing.assert_close(*seen)
