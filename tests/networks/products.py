"""Steps of random networks: products, convolutions, attention, recurrences, windows."""

import torch
import torch.nn.functional as F

ACTIVATIONS = (torch.relu, torch.tanh, F.gelu, F.silu, torch.sigmoid, F.hardswish, torch.neg)


def linear(d):
    x = d.value(lambda v: v.dim() and v.shape[-1] > 0)
    wide = d.pick(1, 2, 3, 7, 8, 16, 17, 32, 48, 65, 130)
    weight = d.weight(wide, x.shape[-1])
    bias = d.weight(wide, scale=1.0) if d.pick(0, 1) else None
    kind = d.pick("plain", "plain", "activated", "autocast", "half", "transposed", "gated")
    if kind == "autocast":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.linear(x, weight, bias).to(x.dtype)
    if kind == "half":
        low = d.pick(torch.bfloat16, torch.float16)
        return F.linear(x.to(low), weight.to(low)).to(x.dtype)
    if kind == "transposed":
        return x @ d.weight(x.shape[-1], wide, scale=0.2)
    if kind == "gated":
        return F.silu(F.linear(x, weight, bias)) * F.linear(x, d.weight(wide, x.shape[-1]))
    made = F.linear(x, weight, bias)
    return d.pick(*ACTIVATIONS)(made) if kind == "activated" else made


def product(d):
    """A product of two values, or of one with itself."""
    x = d.value(lambda v: v.dim() > 1)
    scale = max(1, x.shape[-1]) ** -0.5
    kind = d.pick("matmul", "self", "transposed self", "mv", "einsum", "chain", "outer")
    if kind == "matmul":
        y = d.value(lambda v: v.dim() > 1 and v.shape[-2] == x.shape[-1])
        return x @ y * scale
    if kind == "self":
        return x @ x.transpose(-1, -2) * scale
    if kind == "transposed self":
        return x.mT @ x * 0.1
    if kind == "mv":
        return x @ d.weight(x.shape[-1], scale=0.3)
    if kind == "einsum":
        return torch.einsum("...ij,...kj->...ki", x, x) * scale
    if kind == "outer":
        return x[..., :, None] * x[..., None, :]
    return (x @ d.weight(x.shape[-1], 5) @ d.weight(5, 9)).relu() * scale


def added(d):
    x = d.value(lambda v: v.dim() == 2 and v.numel())
    w, b = d.weight(x.shape[1], 11, scale=0.3), d.weight(d.pick(1, 11), scale=1.0)
    if d.pick(0, 1):
        return torch.addmm(b, x, w, beta=d.pick(1, 0.5, 0), alpha=d.pick(1, 2))
    return torch.baddbmm(b, x[None], w[None], beta=d.pick(1, 0.5))


def _convolved(d, x, rank):
    groups = d.pick(1, 1, 1, x.shape[1], 2)
    out = groups * d.pick(1, 2, 3, 8, 16)
    taps = tuple(d.pick(1, 3, 3, 2, 5) for _ in range(rank))
    weight = d.weight(out, x.shape[1] // groups, *taps)
    bias = d.weight(out, scale=1.0) if d.pick(0, 1) else None
    dilation, stride = d.pick(1, 1, 1, 2), d.pick(1, 1, 2, 3)
    padding = d.pick(0, 1, 2, 1) if stride > 1 or d.pick(0, 1) else "same"
    return (F.conv1d, F.conv2d, F.conv3d)[rank - 1](
        x, weight, bias, stride, padding, dilation, groups
    )


def convolution(d):
    rank = d.pick(1, 2, 2, 2, 2, 3)
    x = d.value(lambda v: v.dim() == rank + 2 and v.numel())
    made = _convolved(d, x, rank)
    kind = d.pick("plain", "normed", "activated", "residual")
    if kind == "normed":
        return batch_normed(d, made)
    if kind == "residual" and made.shape == x.shape:
        return torch.relu(made + x)
    return d.pick(*ACTIVATIONS)(made) if kind == "activated" else made


def batch_normed(d, x):
    channels = x.shape[1]
    mean, variance = d.buffer(channels), d.buffer(channels)
    weight, bias = d.weight(channels, scale=1.0), d.weight(channels, scale=1.0)
    return F.batch_norm(x, mean, variance + 1, weight, bias, training=False, eps=1e-2)


def batch_norm(d):
    # Strides of the normalised transposed are not those of eager (decision 265).
    x = d.value(lambda v: v.dim() > 1 and v.shape[1] and v.numel() > 2 * v.shape[1]).contiguous()
    channels = x.shape[1]
    if d.pick(0, 1):
        return batch_normed(d, x)
    mean, variance = d.buffer(channels), d.buffer(channels)
    return F.batch_norm(x, mean, variance, training=True, momentum=d.pick(0.1, 0.5), eps=1e-2)


def grouped(d):
    x = d.value(lambda v: v.dim() > 2 and v.shape[1] and v.numel() > v.shape[0] * v.shape[1])
    if d.pick(0, 1):
        return F.instance_norm(x, eps=1e-2)
    return F.group_norm(x, d.pick(1, 2, 3, x.shape[1]), eps=1e-2)


def transposed(d):
    rank = d.pick(1, 2, 2, 3)  # of more than a place, so that PyTorch refuses no empty result
    x = d.value(lambda v: v.dim() == rank + 2 and v.numel() and min(v.shape[2:]) > 1)
    taps = d.pick(2, 3, 4)
    groups = d.pick(1, 1, 2)
    weight = d.weight(x.shape[1], d.pick(1, 3, 8), *[taps] * rank, scale=0.2)
    fn = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    return fn(x, weight, stride=d.pick(1, 2, 2, 3), padding=d.pick(0, 1), groups=groups)


def window(d):
    x = d.value(lambda v: v.dim() == 4 and v.numel())
    taps, stride, pad = d.pick(2, 3, 3, 5), d.pick(1, 2, 3), d.pick(0, 1)
    kind = d.pick("max", "average", "adaptive", "adaptive max", "global", "unfold", "lp")
    if kind == "max":
        return F.max_pool2d(x, taps, stride, pad, dilation=d.pick(1, 1, 2), ceil_mode=d.pick(0, 1))
    if kind == "average":
        return F.avg_pool2d(x, taps, stride, pad, count_include_pad=bool(d.pick(0, 1)))
    if kind == "global":
        return x.mean((2, 3), keepdim=True)
    if kind == "unfold":
        return F.unfold(x, taps, 1, pad, stride)
    if kind == "lp":
        return F.lp_pool2d(x.abs() + 0.1, 2, taps, stride)
    fn = F.adaptive_max_pool2d if kind == "adaptive max" else F.adaptive_avg_pool2d
    return fn(x, (d.pick(1, 2, 3, 5), d.pick(1, 2, 4)))


def resized(d):
    x = d.value(lambda v: v.dim() == 4 and v.numel())
    kind = d.pick("nearest", "bilinear", "shuffle", "unshuffle", "pad", "bicubic", "grid")
    if kind == "shuffle":
        return F.pixel_shuffle(x, 2)
    if kind == "unshuffle":
        return F.pixel_unshuffle(x, 2)
    if kind == "pad":
        sides = tuple(d.pick(0, 1, 2) for _ in range(4))
        return F.pad(x, sides, d.pick("constant", "reflect", "replicate", "circular"))
    if kind == "grid":
        grid = torch.tanh(x[:, :1].flatten(2).mT.reshape(x.shape[0], -1, 1, 1).expand(-1, -1, 3, 2))
        return F.grid_sample(x, grid * 1.2, d.pick("bilinear", "nearest"), align_corners=False)
    if kind == "nearest":
        return F.interpolate(x, scale_factor=2.0)
    return F.interpolate(
        x, (d.pick(3, 6), d.pick(4, 9)), mode=kind, align_corners=bool(d.pick(0, 1))
    )


def attention(d):
    x = d.value(lambda v: v.dim() == 3 and v.numel())
    heads, width = d.pick(1, 2, 4), d.pick(3, 8, 16)
    shared = d.pick(1, 1, heads)
    q, k, v = (
        F.linear(x, d.weight(width * n, x.shape[-1])).unflatten(-1, (n, width)).transpose(1, 2)
        for n in (heads, heads // shared, heads // shared)
    )
    mask = None
    kind = d.pick("plain", "causal", "bias", "boolean")
    if kind == "bias":
        mask = (q @ q.mT).sigmoid() * 0.5
    if kind == "boolean":
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(1)
    made = F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=kind == "causal", enable_gqa=shared > 1
    )
    return made.transpose(1, 2).flatten(2)


def written_attention(d):
    """Attention as models write it out."""
    x = d.value(lambda v: v.dim() == 3 and v.numel())
    scores = x @ x.mT * 0.2
    if d.pick(0, 1):
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, d.pick(-1e9, float("-inf")))
    if d.pick(0, 1):
        scores = scores - torch.arange(x.shape[1], dtype=x.dtype) * 0.25
    return scores.softmax(-1) @ x


def recurrence(d):
    # With a gradient, without which AOTAutograd (2.13) fails on an LSTM that has trained weights.
    x = d.value(lambda v: v.dim() == 3 and v.numel() and v.shape[1] < 12) + d.weight(1)
    wide, kind = d.pick(3, 8), d.pick("lstm", "gru", "rnn")
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[kind] * wide
    weights = [d.weight(gates, x.shape[-1]), d.weight(gates, wide)]
    weights += [d.weight(gates, scale=0.3), d.weight(gates, scale=0.3)]
    start = x.new_zeros(1, x.shape[0], wide)
    given = (weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)
    if kind == "lstm":
        return torch.lstm(x, (start, start), *given)[0]
    return (torch.gru if kind == "gru" else torch.rnn_tanh)(x, start, *given)[0]


def reached(d):
    """A recurrence written out over the second dimension."""
    x = d.value(lambda v: v.dim() == 3 and v.numel() and v.shape[1] < 8)
    state, made = torch.zeros_like(x[:, 0]), []
    for at in range(x.shape[1]):
        state = 0.5 * state + torch.tanh(x[:, at])
        made.append(state)
    return torch.stack(made, 1)


def shaped(d):
    """A value with the dimensions that products and convolutions ask for."""
    x, dims = d.value(lambda v: v.numel()), d.pick(2, 3, 3, 4, 4, 4, 5)
    while x.dim() > dims:
        x = x.flatten(d.pick(0, 1), 2) if x.dim() > 3 else x.flatten(1)
    while x.dim() < dims:
        x = x.unsqueeze(d.below(x.dim() + 1)) if d.pick(0, 1) else _split(d, x)
    return x


def _split(d, x):
    if not x.dim():
        return x.unsqueeze(0)
    return x.unflatten(-1, (-1, d.pick(1, 2, 3, 4)))


STEPS = {
    linear: 6,
    product: 3,
    added: 1,
    convolution: 8,
    batch_norm: 1,
    grouped: 1,
    transposed: 1.5,
    window: 2,
    resized: 2,
    attention: 1,
    written_attention: 1,
    recurrence: 0.4,
    reached: 0.4,
    shaped: 3,
}
