"""Steps of random networks: views, joins, gathers, scatters, and writes in place."""

import torch
import torch.nn.functional as F

from tests.networks.drawing import fits


def view(d):
    x = d.value(kind=d.pick("float", "float", "int"))
    kind = d.pick(
        "transpose", "permute", "slice", "end", "select", "unsqueeze", "squeeze", "expand"
    )
    if kind == "unsqueeze":
        return x.unsqueeze(d.below(x.dim() + 1))
    if kind == "squeeze":
        return x.squeeze()
    if kind == "expand":
        return x.unsqueeze(0).expand(d.pick(1, 2, 3), *x.shape) if d.pick(0, 1) else x.expand_as(x)
    dim = d.dim(x)
    if kind == "transpose":
        return x.transpose(dim, d.dim(x))
    if kind == "permute":
        return x.movedim(dim, d.dim(x))
    if kind == "slice":
        start, step = d.pick(0, 1, 2), d.pick(1, 1, 2, 3)
        return x[(slice(None),) * dim + (slice(start, None, step),)]
    if kind == "end":
        return x.narrow(dim, x.shape[dim] - 1, 1) if d.pick(0, 1) else x[..., -d.pick(1, 2, 3) :]
    return x.select(dim, d.pick(0, -1))


def odd_view(d):
    x = d.value(lambda v: v.dim() and v.numel())
    kind = d.pick("diagonal", "unfold", "strided", "bits", "flatten", "reshape", "half", "like")
    if kind == "diagonal":
        return x.diagonal(d.pick(0, 1, -1), x.dim() - 2, x.dim() - 1)
    if kind == "unfold":
        return x.unfold(d.dim(x), d.pick(1, 2), d.pick(1, 2))
    if kind == "strided":
        return x.contiguous().as_strided((d.pick(1, 2), 2), (1, d.pick(0, 1)), d.pick(0, 1))
    if kind == "bits":
        return (x.float().view(torch.int32) & 0x7FFFFFFF).view(torch.float32).to(x.dtype)
    if kind == "flatten":
        return x.flatten()
    if kind == "reshape":
        return x.reshape(-1, x.shape[0])
    if kind == "half":
        return x.chunk(2, d.dim(x))[d.pick(0, -1)]
    return x.to(memory_format=torch.channels_last) if x.dim() == 4 else x.contiguous()


def moved(d):
    x = d.value(lambda v: v.dim(), kind=d.pick("float", "float", "int"))
    kind = d.pick("flip", "roll", "repeat", "pad", "tile", "clone", "rot", "tril", "interleave")
    if kind == "flip":
        return x.flip(d.dim(x))
    if kind == "roll":
        return x.roll(d.pick(1, -1, 3), d.dim(x))
    if kind == "repeat":
        return x.repeat(d.pick(1, 2), *[1] * (x.dim() - 1))
    if kind == "pad":
        return F.pad(x, (d.pick(0, 1, -1), d.pick(0, 2)), value=d.pick(0, 1))
    if kind == "tile":
        return x.tile(d.pick(1, 3))
    if kind == "interleave":
        return x.repeat_interleave(d.pick(1, 2), d.dim(x))
    if kind in ("rot", "tril") and x.dim() > 1:
        return x.rot90(d.pick(1, 2), (0, 1)) if kind == "rot" else x.tril(d.pick(0, 1, -1))
    return x.clone(memory_format=torch.contiguous_format)


def joined(d):
    x = d.value(lambda v: v.dim())
    kind = d.pick("cat", "stack", "cat self", "swapped", "rotated", "unbound")
    if kind == "stack":
        return torch.stack([x, x * 2, x.sin()], d.below(x.dim() + 1))
    if kind == "cat":
        dim = d.dim(x)
        same = [n for n in range(x.dim()) if n != dim]
        others = lambda v: v.dim() == x.dim() and all(v.shape[n] == x.shape[n] for n in same)  # noqa: E731
        return torch.cat([x, d.value(others), d.value(others)], dim)
    if kind == "swapped":
        return torch.cat(x.chunk(2, d.dim(x))[::-1], d.dim(x))
    if kind == "rotated":
        first, second = x.chunk(2, -1)
        return torch.cat([-second, first], -1)
    if kind == "unbound":
        return sum(x.unbind(d.dim(x)), 0.0 * x.sum())
    return torch.cat([x, -x], d.dim(x))


def _places(d, x, count):
    """Whole numbers below ``count``, from those of a value."""
    return x.reshape(-1)[: d.pick(1, 3, 8, 64)].remainder(max(1, count))


def gathered(d):
    x = d.value(lambda v: v.dim() and v.numel())
    index, dim = d.value(lambda v: v.numel(), kind="int64"), d.dim(x)
    kind = d.pick("select", "gather", "index", "sort", "topk", "embedding", "take", "bag", "onehot")
    if kind == "gather":
        places = torch.arange(x.numel()).reshape(x.shape) * 7 % x.shape[dim]
        return x.gather(dim, places)
    if kind == "sort":
        made, order = (x * 4).sort(dim, descending=bool(d.pick(0, 1)), stable=True)
        return made + order
    if kind == "topk":
        return torch.cat(x.topk(d.pick(1, 2), dim), dim)
    if kind == "embedding":
        return F.embedding(index.remainder(13), d.weight(13, d.size()))
    if kind == "bag":
        table = d.weight(13, 6)
        return F.embedding_bag(
            index.reshape(1, -1).remainder(13), table, mode=d.pick("sum", "mean", "max")
        )
    if kind == "take":
        return x.take(_places(d, index, x.numel()))
    if kind == "onehot":
        return F.one_hot(index.remainder(5), 5).to(x.dtype)
    places = _places(d, index, x.shape[dim])
    if kind == "index":
        return x[(slice(None),) * dim + (places,)]
    return x.index_select(dim, places)


def scattered(d):
    x = d.value(lambda v: v.dim() and v.numel())
    index = d.value(lambda v: v.numel(), kind="int64")
    places = _places(d, index, x.shape[0])
    kind = d.pick("add", "put", "accumulate", "scatter", "reduce", "masked", "copy", "slice")
    new = x.index_select(0, places) * 0.5 + 1
    if kind == "add":
        return x.index_add(0, places, new)
    if kind in ("put", "accumulate"):
        once = torch.arange(x.shape[0]).flip(0) if kind == "put" else places
        return x.index_put((once,), x.index_select(0, once) * 0.5, accumulate=kind != "put")
    if kind in ("scatter", "reduce"):
        order = torch.arange(x.numel()).reshape(x.shape) * 5 % x.shape[0]
        if kind == "scatter":
            return x.scatter_add(0, order, x.cos())
        return x.scatter_reduce(0, order, x.cos(), d.pick("sum", "amax", "amin", "mean"))
    if kind == "masked":
        return x.masked_scatter(x > 10, x) if d.pick(0, 1) else x.masked_fill(x > 0.5, 0.5)
    if kind == "copy":
        return x.index_fill(0, places, 0.5)
    return x.slice_scatter(x.narrow(0, 0, 1).cos(), 0, 0, 1)


def written(d):
    """A copy that is written to through views."""
    y = d.value(lambda v: v.dim() and v.numel()).clone()
    kind = d.pick("slice", "transposed", "masked", "row", "chain", "index", "fill", "view of view")
    if kind == "slice":
        y[..., :: d.pick(1, 2)] = d.pick(0.5, -1)
    elif kind == "transposed":
        y.transpose(0, -1).mul_(0.5)
    elif kind == "masked":
        y[y > 0.25] = 0.25
    elif kind == "row":
        y[d.pick(0, -1)] += 1
    elif kind == "chain":
        y.mul_(0.5).add_(1).clamp_(-3, 3)
    elif kind == "index":
        y[torch.tensor([0])] = y[torch.tensor([y.shape[0] - 1])].sin()
    elif kind == "fill":
        y.select(d.dim(y), 0).fill_(0.125)
    else:
        y.flatten()[: d.pick(1, 2)].copy_(y.flatten()[-1:].expand(1))
        y.view(-1)[1:].sub_(y.reshape(-1)[0].clone())
    return y


def mutated(d):
    """An input or value that is written to where it lies."""
    x = d.value(lambda v: v.dim() and v.numel(), kind=d.pick("float", "float", "int"))
    kind = d.pick("add", "slice", "copy", "row", "view")
    if kind == "add":
        x.add_(1)
    elif kind == "slice":
        x[..., 1:] *= 2
    elif kind == "copy":
        y = d.value(lambda v: v.dtype == x.dtype and fits(v, x) and v.numel() <= x.numel(), "any")
        x.copy_(y)
    elif kind == "row":
        x[d.pick(0, -1)] = 1
    else:
        x.transpose(0, -1)[0].neg_()
    return x[: d.pick(1, 100)]


def remembered(d):
    """State: a cache that is written at a place, a ring, a sum."""
    x = d.value(lambda v: v.dim() > 1 and v.numel())
    kind = d.pick("cache", "ring", "sum", "swap", "shift", "view of cache", "put")
    if kind == "sum":
        total = d.buffer(*x.shape)
        total.mul_(0.5).add_(x.detach())
        return total * 2 if d.pick(0, 1) else total.clone()
    length = d.pick(4, 7)
    cache = d.buffer(length, *x.shape[1:])
    row = x.detach()[0]
    if kind == "cache":
        cache[d.pick(0, 1, -1)] = row
    elif kind == "ring":
        count = d.buffer(1, dtype=torch.int64)
        cache.index_copy_(0, count % length, row[None])
        count += 1
    elif kind == "put":
        cache[torch.tensor([d.pick(0, 2), 3])] = row
    elif kind == "view of cache":
        cache.transpose(0, 1)[:, 1].copy_(row)
    elif kind == "swap":
        cache.copy_(cache.flip(0) + row)
    else:
        cache.copy_(cache.roll(1, 0))
        cache[0].copy_(row)
    return cache[1:] if d.pick(0, 1) else cache + 0.0


STEPS = {
    view: 6,
    odd_view: 2,
    moved: 2,
    joined: 3,
    gathered: 2,
    scattered: 2,
    written: 2,
    mutated: 1,
    remembered: 1,
}
