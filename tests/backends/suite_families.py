"""Families of operators for the differential suite: each case a few calls that models make."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.backends.suite import Case
from tests.backends.suite_inputs import INF, NAN, seeded, t

LONG, BOOL = torch.int64, torch.bool
ODD = torch.tensor([0.0, -0.0, 1.0, -1.5, INF, -INF, NAN, 1e-40, 3e38, -7.25])
ROWS = torch.stack([ODD[:5], ODD[5:], torch.full((5,), -INF), torch.full((5,), NAN)])
IMAGE, FILTER = t(2, 4, 6, 7), t(8, 4, 3, 3)
LAST = torch.channels_last


POINTWISE = {
    "functions": Case(
        lambda x: (x.sin(), x.exp(), x.tanh(), x.sigmoid(), x.erf(), x.abs().log1p(), x.atan()),
        (t(4, 5),),
    ),
    "special_values": Case(
        lambda x: (x.exp(), x.tanh(), x.sqrt(), x.log(), x.reciprocal(), x.sign(), x.floor()),
        (ODD,),
        grad=False,
    ),
    "special_activations": Case(
        lambda x: (F.gelu(x), F.silu(x), F.relu(x), F.softplus(x), F.leaky_relu(x), x.sigmoid()),
        (ODD,),
        grad=False,
    ),
    "special_pairs": Case(
        lambda x, y: (x + y, x * y, x / y, torch.maximum(x, y), torch.minimum(x, y), x.pow(y)),
        (ODD[:, None], ODD),
        grad=False,
    ),
    "comparisons": Case(
        lambda x, y: (x == y, x != y, x < y, x <= y, x > 0.5, x >= y), (ODD[:, None], ODD)
    ),
    "clamps": Case(
        lambda x: (x.clamp(-1, 1), x.clamp(min=0), x.clamp(max=0.5), F.hardtanh(x)), (ODD,)
    ),
    "rounding": Case(
        lambda x: (x.round(), x.trunc(), x.ceil(), x.frac(), x % 3, torch.fmod(x, 3)),
        (t(20) * 5,),
        grad=False,
    ),
    "where_and_fill": Case(
        lambda x, m: (torch.where(m, x, 0.0), x.masked_fill(m, -INF), x.nan_to_num()),
        (t(4, 5), t(4, 5, dtype=BOOL)),
    ),
    "activations": Case(
        lambda x: (F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.elu(x), F.mish(x)),
        (t(4, 5),),
    ),
    "promotion": Case(lambda x, i: (x + i, i / 2, i * 1.5, x > i), (t(4), t(4, dtype=LONG))),
    "complex": Case(
        lambda x: torch.view_as_real(x * x.conj() + 2j), (t(4, dtype=torch.complex64),), grad=False
    ),
}

INTEGERS = {
    "arithmetic": Case(
        lambda x, y: (x + y, x * y, x - y, -x, x.abs(), x.sign()),
        (t(4, 5, dtype=LONG), t(5, dtype=LONG)),
    ),
    "division": Case(
        lambda x: (x // 3, x % 3, torch.div(x, -3, rounding_mode="trunc"), x.remainder(-4), x / 4),
        (t(11, dtype=LONG),),
    ),
    "bits": Case(
        lambda x, y: (x & y, x | y, x ^ y, ~x, x << 2, x >> 1),
        (t(9, dtype=LONG), t(9, dtype=LONG, seed=1)),
    ),
    "small_types": Case(
        lambda x, y: (x + x, x * y, x.to(torch.int32), y.to(torch.float32), x.sum()),
        (t(9, dtype=torch.int8) * 30, t(9, dtype=torch.int64).abs().to(torch.uint8)),
    ),
    "wrapping": Case(
        lambda x: (x + 1, x * 2, -x, x.abs()),
        (torch.tensor([2**31 - 1, -(2**31)], dtype=torch.int32),),
    ),
    "large": Case(
        lambda x: (x + 1, x.float(), x == x + 1, x.sum()), (torch.tensor([2**53, 2**62]),)
    ),
    "booleans": Case(
        lambda x, y: (x & y, x | y, ~x, x ^ y, x.any(), x.all(1), x.sum(), x * 2, x + y),
        (t(3, 4, dtype=BOOL), t(4, dtype=BOOL)),
    ),
    "reductions": Case(
        lambda x: (x.sum(0), x.prod(1), x.amax(1), x.amin(), x.argmax(1), x.float().mean()),
        (t(4, 5, dtype=LONG),),
    ),
    "pow": Case(lambda x: (x**2, x**3, x.float() ** 0.5), (t(6, dtype=LONG),)),
}

REDUCTIONS = {
    "along": Case(lambda x: (x.sum(0), x.mean(1), x.sum((0, 2), keepdim=True)), (t(3, 4, 5),)),
    "extremes": Case(lambda x: (x.amax(1), x.max(2)[0], x.argmin(1), x.max()), (t(3, 4, 5),)),
    "variance": Case(
        lambda x: (x.var(1), x.std(0, correction=0), *torch.var_mean(x, 2)), (t(3, 4, 5),)
    ),
    "variance_of_odd_rows": Case(lambda x: (x.var(1), x.std(1, correction=0)), (ROWS,), grad=False),
    "variance_of_one": Case(lambda x: (x.var(1), *torch.var_mean(x, 1)), (t(3, 1),), grad=False),
    "odd_rows": Case(
        lambda x: (x.sum(1), x.mean(1), x.amax(1), x.amin(1), x.argmax(1), x.prod(1)),
        (ROWS,),
        grad=False,
    ),
    "softmax_odd_rows": Case(
        lambda x: (x.softmax(1), x.log_softmax(1), x.logsumexp(1)), (ROWS,), grad=False
    ),
    "norms": Case(lambda x: (x.norm(), torch.linalg.vector_norm(x, 1, 1), x.prod(1)), (t(3, 4),)),
    "scans": Case(lambda x: (x.cumsum(0), x.cumprod(1), x.cummax(1)[0]), (t(3, 4),)),
    "sorted": Case(lambda x: (*x.sort(1), *x.topk(2, 1), x.median()), (t(3, 4),)),
    "nothing": Case(
        lambda x: (x.sum(0), x.mean(1), x.prod(0), (x > 0).all(0), (x > 0).any(), x.var(0)),
        (torch.empty(0, 3),),
    ),
    "no_columns": Case(lambda x: (x.sum(1), x.mean(1), x.softmax(1), x.cumsum(1)), (t(3, 0),)),
    "a_number": Case(lambda x: (x.sum(), x.mean(), x.softmax(0), x.amax()), (torch.tensor(2.5),)),
}

SHAPES = {
    "views": Case(
        lambda x: (
            x.T * 2,
            x.view(2, 10) + 1,
            x[1:, ::2] * 3,
            x.unsqueeze(1) + 1,
            x.diagonal() + 0,
        ),
        (t(4, 5),),
    ),
    "returned_views": Case(lambda x: ((y := x + 1).T, y[1:, ::2], y.expand(2, 4, 5)), (t(4, 5),)),
    "joined": Case(
        lambda x, y: (torch.cat([x, y]), torch.stack([x, x]), torch.cat([x, y[:0]], 0)),
        (t(2, 3), t(4, 3)),
    ),
    "parts": Case(lambda x: (*x.split(2, 1), *x.chunk(2), *x.unbind(0)), (t(2, 5),)),
    "padded": Case(
        lambda x: (F.pad(x, (1, 2)), F.pad(x, (-1, 1, 2, 0), value=3), F.pad(x, (1, 1), "reflect")),
        (t(2, 3, 4),),
    ),
    "rolled": Case(
        lambda x: (x.roll(1, 0), x.roll((1, 2), (0, 1)), x.flip(1), x.rot90()), (t(4, 5),)
    ),
    "rolled_channels_last": Case(
        lambda x: (x.roll(1, 1), x.flip(2), x * 2), (IMAGE.to(memory_format=LAST),)
    ),
    "repeated": Case(lambda x: (x.repeat(2, 3), x.repeat_interleave(2, 1), x.tile(2)), (t(2, 3),)),
    "triangles": Case(lambda x: (x.tril(), x.triu(1), x.tril(-1)), (t(4, 5),)),
    "pixels": Case(lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2)), (t(1, 4, 4, 4),)),
    "unfolded": Case(lambda x: (x.unfold(1, 3, 2), F.unfold(x[None, None], 2)), (t(4, 6),)),
    "transposed_input": Case(lambda x: (x + 1, x.sum(0), x.reshape(-1)), (t(5, 4).T,)),
    "expanded_input": Case(lambda x: (x * 2, x.sum(1), x.T @ x), (t(4, 1).expand(4, 3),)),
    "sliced_input": Case(lambda x: (x.exp(), x.contiguous() + 1), (t(8, 6)[::2, 1:4],)),
    "channels_last": Case(
        lambda x: (F.relu(x), x + x.mean((2, 3), keepdim=True)), (IMAGE.to(memory_format=LAST),)
    ),
    "zero_size": Case(
        lambda x: (x * 2, x.T, x.reshape(0), torch.cat([x, x]), x @ x.T, x.T @ x), (t(0, 3),)
    ),
    "made": Case(
        lambda x: (torch.arange(5) + x, torch.full((2, 5), 3) * x, torch.eye(5) @ x, x.new_ones(2)),
        (t(5),),
    ),
    "as_strided": Case(lambda x: (x + 1).as_strided((3, 2), (2, 1), 1), (t(10),)),
}

INDEXING = {
    "gathered": Case(
        lambda x, i: (x.gather(1, i), x[i[:, 0]], x.index_select(0, i[0]), x.take_along_dim(i, 1)),
        (t(4, 5), t(4, 3, dtype=LONG).abs() % 4),
    ),
    "negative": Case(lambda x, i: (x[i], x[:, i]), (t(6, 6), t(3, dtype=LONG))),
    "masked": Case(lambda x, m: (x * m, x.where(m, 1)), (t(4, 5), t(4, 5, dtype=BOOL))),
    "scattered": Case(
        lambda x, i, y: (x.scatter(1, i, y), x.scatter_add(1, i, y), x.index_add(1, i[0], y)),
        (t(4, 4), torch.tensor([[0, 1, 3]] * 4), t(4, 4)[:, :3]),
        grad=False,
    ),
    "put": Case(
        lambda x, i, y: (x.index_put((i,), y), x.index_put((i,), y, accumulate=True)),
        (t(4, 3), torch.tensor([2, 0]), t(2, 3)),
    ),
    "embedding": Case(
        lambda i, w: F.embedding(i, w, padding_idx=1).relu(), (t(3, 4, dtype=LONG).abs(), t(6, 4))
    ),
    "embedding_bag": Case(
        lambda i, w: F.embedding_bag(i, w, mode="sum"), (t(3, 4, dtype=LONG).abs(), t(6, 4))
    ),
    "embedding_of_nothing": Case(
        lambda i, w: F.embedding(i, w), (torch.empty(0, 2, dtype=LONG), t(6, 4))
    ),
    "out_of_range": Case(
        lambda i, w: F.embedding(i, w), (torch.tensor([0, 9]), t(6, 4)), grad=False, raises=True
    ),
    "one_hot": Case(lambda i: F.one_hot(i, 7), (t(5, dtype=LONG).abs(),)),
    "losses": Case(
        lambda x, i: (
            F.cross_entropy(x, i),
            F.nll_loss(x, i, ignore_index=0),
            F.mse_loss(x, x + 1),
        ),
        (t(6, 7), t(6, dtype=LONG).abs()),
    ),
    "all_ignored": Case(
        lambda x, i: F.cross_entropy(x, i, ignore_index=2), (t(3, 7), torch.tensor([2, 2, 2]))
    ),
}

PRODUCTS = {
    "matmul": Case(
        lambda x, w, b: (x @ w, F.linear(x, w.T, b), x[0] @ w), (t(4, 5), t(5, 6), t(6))
    ),
    "batched": Case(
        lambda x, y: (x @ y, torch.einsum("bij,bjk->bki", x, y)), (t(3, 4, 5), t(3, 5, 2))
    ),
    "transposed": Case(lambda x, y: (x.T @ y, x.mT @ y.mT.mT), (t(5, 4), t(5, 6))),
    "factors": Case(
        lambda b, x, y: (torch.addmm(b, x, y, beta=0.5, alpha=2), torch.addmm(b, x, y, beta=0)),
        (t(4, 6), t(4, 5), t(5, 6)),
    ),
    "nan_bias_unused": Case(
        lambda b, x, y: torch.addmm(b, x, y, beta=0),
        (torch.full((4, 6), NAN), t(4, 5), t(5, 6)),
        grad=False,
    ),
    "determinant_of_nothing": Case(lambda x: torch.linalg.slogdet(x), (t(0, 0),)),
    "empty_inner": Case(lambda x, y: (x @ y, torch.addmm(y.new_ones(2), x, y)), (t(3, 0), t(0, 2))),
    "special": Case(lambda x, y: x @ y, (ROWS, t(5, 3)), grad=False),
    "linalg": Case(lambda x: torch.linalg.qr(x)[1].abs(), (t(4, 4),)),
}


class Network(nn.Module):
    """Convolutions, batch norm and pooling."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.second = nn.Conv2d(6, 6, 3, stride=2, groups=3)
        self.last = nn.Linear(6, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return self.last(F.adaptive_avg_pool2d(self.second(x), 1).flatten(1))


CONVOLUTIONS = {
    "plain": Case(lambda x, w: F.conv2d(x, w, padding=1), (IMAGE, FILTER)),
    "strided": Case(lambda x, w, b: F.conv2d(x, w, b, 2, 1, 2), (IMAGE, FILTER, t(8))),
    "grouped": Case(lambda x, w: F.conv2d(x, w, groups=4), (IMAGE, t(8, 1, 3, 3))),
    "transposed": Case(
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
        (IMAGE, t(4, 3, 3, 3)),
    ),
    "one_dimension": Case(lambda x, w: F.conv1d(x, w, padding=1), (t(2, 3, 9), t(4, 3, 3))),
    "three_dimensions": Case(lambda x, w: F.conv3d(x, w), (t(1, 2, 4, 4, 4), t(3, 2, 2, 2, 2))),
    "without_batch": Case(lambda x, w: F.conv2d(x, w), (IMAGE[0], FILTER)),
    "empty_batch": Case(lambda x, w: F.conv2d(x, w), (IMAGE[:0], FILTER)),
    "channels_last": Case(lambda x, w: F.conv2d(x, w), (IMAGE.to(memory_format=LAST), FILTER)),
    "pooled": Case(
        lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1), F.adaptive_avg_pool2d(x, (2, 3))),
        (IMAGE,),
    ),
    "pooled_ceil": Case(
        lambda x: (F.max_pool2d(x, 2, ceil_mode=True), F.avg_pool2d(x, 2, ceil_mode=True)), (IMAGE,)
    ),
    "pooled_nan": Case(
        lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 2)), (ROWS[None, None],), grad=False
    ),
    "pooled_uncounted": Case(lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), (IMAGE,)),
    "resized": Case(
        lambda x: (F.interpolate(x, scale_factor=2), F.interpolate(x, (9, 5), mode="bilinear")),
        (IMAGE,),
    ),
    "network": Case(seeded(Network), (t(2, 3, 8, 8),)),
    "network_evaluated": Case(seeded(Network).eval(), (t(2, 3, 8, 8),)),
}

NORMS = {
    "layer": Case(lambda x, w, b: F.layer_norm(x, (5,), w, b), (t(3, 4, 5), t(5), t(5))),
    "layer_two": Case(lambda x: F.layer_norm(x, (4, 5)), (t(3, 4, 5),)),
    "group": Case(lambda x, w: F.group_norm(x, 2, w), (IMAGE, t(4))),
    "instance": Case(lambda x: F.instance_norm(x), (IMAGE,)),
    "instance_of_constant": Case(
        lambda x: F.instance_norm(x, eps=0.0), (torch.full((2, 3, 4, 4), 1.5),), grad=False
    ),
    "root_mean_square": Case(lambda x, w: F.rms_norm(x, (5,), w), (t(3, 5), t(5))),
    "batch": Case(lambda x, m, v: F.batch_norm(x, m, v), (IMAGE, t(4), t(4).abs()), grad=False),
    "batch_training": Case(lambda x: F.batch_norm(x, None, None, training=True), (IMAGE,)),
    "layer_of_nothing": Case(lambda x: F.layer_norm(x, (5,)), (t(0, 5),)),
    "layer_of_odd_rows": Case(lambda x: F.layer_norm(x, (5,)), (ROWS,), grad=False),
    "normalised": Case(lambda x: F.normalize(x, dim=1), (t(3, 4),)),
}


class Writes(nn.Module):
    """Writes to its input and to a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.seen += x.sum(0)
        x.mul_(2)[1:].add_(1)
        return x.T, self.seen * 2


def in_place(x):
    y = x * 2
    y[:, 1] = 7
    y[0].zero_()
    y.mul_(2).relu_()
    return y, x


def overlapping(x):
    y = x + 1
    y[1:].copy_(y[:-1].clone())
    return y.view(-1)


WRITES = {
    "own": Case(in_place, (t(3, 4),)),
    "shifted": Case(overlapping, (t(4, 3),)),
    "input": Case(lambda x: (x.add_(1), x * 2), (t(3, 4),), grad=False),
    "view_of_input": Case(lambda x: x[1:].mul_(3).sum(), (t(3, 4),), grad=False),
    "transposed_input": Case(lambda x: (x.add_(1), None)[1], (t(4, 3).T,), grad=False),
    "buffer_and_input": Case(Writes(), (t(3, 4),), grad=False),
    "integers": Case(lambda x: x.add_(1).mul_(2), (t(5, dtype=LONG),), grad=False),
    "alias": Case(lambda x: (x, x[1:], x.T), (t(3, 4),), grad=False),
}


class Recurrent(nn.Module):
    def __init__(self, make, **kwargs):
        super().__init__()
        self.layer = make(4, 5, batch_first=True, **kwargs)

    def forward(self, x):
        return self.layer(x)


MODELS = {
    "lstm": Case(seeded(lambda: Recurrent(nn.LSTM, num_layers=2)), (t(2, 3, 4),)),
    "lstm_both_ways": Case(seeded(lambda: Recurrent(nn.LSTM, bidirectional=True)), (t(2, 3, 4),)),
    "gru": Case(seeded(lambda: Recurrent(nn.GRU)), (t(2, 3, 4),)),
    "rnn": Case(seeded(lambda: Recurrent(nn.RNN)), (t(2, 3, 4),)),
    "transformer": Case(
        seeded(lambda: nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True)),
        (t(2, 3, 8), t(2, 4, 8)),
    ),
    "mlp": Case(
        seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))),
        (t(5, 4),),
    ),
}
