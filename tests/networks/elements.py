"""Steps of random networks: element by element, along dimensions, and between types."""

import torch
import torch.nn.functional as F

from tests.networks.drawing import fits

SMOOTH = ("tanh", "sigmoid", "sin", "cos", "erf", "silu", "softplus", "gelu", "elu", "mish")
SMOOTH += ("logsigmoid", "tanhshrink", "softsign", "atan")
BROKEN = ("relu", "abs", "neg", "hardswish", "hardtanh", "relu6", "leaky_relu", "hardsigmoid")
TYPES = (torch.bfloat16, torch.float16, torch.float64)


def function(d):
    x, name = d.value(), d.pick(*SMOOTH, *BROKEN)
    return getattr(F, name)(x) if hasattr(F, name) else getattr(torch, name)(x)


def careful(d):
    """Functions of what they are defined for."""
    x = d.value()
    kind = d.pick("log", "sqrt", "exp", "divide", "power", "rsqrt", "hypot", "remainder")
    positive = x * x + 1
    if kind in ("log", "sqrt", "rsqrt"):
        return getattr(torch, kind)(positive)
    if kind == "exp":
        return x.clamp(-3, 3).exp()
    if kind == "divide":
        return x / positive
    if kind == "power":
        return positive.clamp(max=4) ** d.pick(0.5, 2, -1, 1.5, 3)
    return torch.hypot(x, positive) if kind == "hypot" else x.remainder(positive + 50)


def binary(d):
    x = d.value()
    y = d.value(lambda v: fits(v, x))
    name = d.pick("add", "sub", "mul", "maximum", "minimum", "lerp", "swapped", "alpha")
    if name == "lerp":
        return torch.lerp(x, y.to(x.dtype), 0.25)
    if name == "swapped":
        return 1.5 - y / (x * x + 1)
    return torch.add(x, y, alpha=2) if name == "alpha" else getattr(torch, name)(x, y)


def constant(d):
    x = d.value()
    kind = d.pick("python", "scalar", "arange", "full", "masked")
    if kind == "python":
        return x * d.pick(0.5, -1, 2) + d.pick(0, 1.0, -3)
    if kind == "scalar":
        return x + torch.tensor(0.25, dtype=x.dtype)
    if kind == "arange":
        return x + torch.arange(x.shape[-1], dtype=x.dtype) * 0.125 if x.dim() else x
    if kind == "full":
        return x + x.new_full(x.shape[-1:], 0.5)
    return x.masked_fill(x > 0.5, 0.75) if d.pick(0, 1) else torch.where(x < 0, x * 0.1, x)


def reduce(d):
    x = d.value(lambda v: v.dim() and v.numel())
    dim, keep = d.dim(x), d.pick(True, False)
    kind = d.pick("sum", "mean", "amax", "amin", "std", "var", "logsumexp", "norm", "prod", "all")
    if kind in ("std", "var"):
        return getattr(x, kind)(dim, keepdim=keep, correction=0) if kind == "var" else x.var()
    if kind == "prod":
        return (x.sin() * 0.2 + 1).prod(dim, keepdim=keep)
    if kind == "norm":
        return torch.linalg.vector_norm(x, d.pick(1, 2, 3), dim, keepdim=keep)
    if kind == "all":
        return (x > 0).all(dim, keepdim=keep).to(x.dtype) + x.sum()
    if kind == "logsumexp" or x.dim() < 2 or not d.pick(0, 0, 1):
        return getattr(x, kind)(dim, keepdim=keep)
    return getattr(x, kind)((0, x.dim() - 1), keepdim=keep)


def scan(d):
    x = d.value(lambda v: v.dim() and v.numel())
    dim, kind = d.dim(x), d.pick("cumsum", "cumprod", "cummax", "back", "softmax", "log_softmax")
    if kind == "cumprod":
        return (x.sin() * 0.1 + 1).cumprod(dim)
    if kind == "cummax":
        return x.cummax(dim).values
    if kind == "back":
        return x.flip(dim).cumsum(dim).flip(dim)
    return getattr(x, kind)(dim)


def norm(d):
    x = d.value(lambda v: v.dim() > 1 and v.shape[-1] > 1)
    width = x.shape[-1]
    kind = d.pick("layer", "rms", "normalize", "layer plain")
    if kind == "layer":
        weight, bias = d.weight(width, scale=1.0), d.weight(width, scale=1.0)
        return F.layer_norm(x, (width,), weight, bias, eps=1e-2)
    if kind == "rms":
        return F.rms_norm(x, (width,), d.weight(width, scale=1.0), eps=1e-2)
    if kind == "normalize":
        return F.normalize(x, dim=d.dim(x), eps=0.1)
    return F.layer_norm(x, x.shape[-1:], eps=1e-2)


def converted(d):
    """A part in another type."""
    x, kind = d.value(), d.pick(*TYPES)
    other = x.to(kind)
    if d.pick(0, 1):
        other = other * other.sigmoid() + 1
    if other.dim() and other.numel() and d.pick(0, 1):
        other = other.softmax(-1) if d.pick(0, 1) else other + other.amax(-1, keepdim=True)
    return other.to(x.dtype)


def integers(d):
    """Arithmetic of whole numbers, and conditions."""
    x = d.value(kind="int")
    kind = d.pick("arithmetic", "divide", "bits", "compare", "modulo", "reduce", "small", "scan")
    if kind == "arithmetic":
        return x * 3 - d.pick(1, 7) + x.clamp(-3, 3)
    if kind == "divide":
        return torch.div(x, d.pick(2, -3), rounding_mode=d.pick("floor", "trunc"))
    if kind == "bits":
        return ((x << 2) ^ x) & 255
    if kind == "compare":
        return torch.where((x > 2) | (x == -1), x, -x)
    if kind == "modulo":
        return x % d.pick(5, -4) + torch.fmod(x, 3)
    if kind == "scan":
        return x.cumsum(d.dim(x)) if d.pick(0, 1) else x.flip(d.dim(x)).clamp(-50, 50)
    if kind == "small":
        return x.to(d.pick(torch.int8, torch.uint8, torch.int32, torch.int16)).add(3).to(x.dtype)
    return x.sum(d.dim(x), keepdim=True) % 100 if d.pick(0, 1) else x.amax(d.dim(x), keepdim=True)


def to_float(d):
    x = d.value(kind="int")
    return x.remainder(17).to(d.dtype) * 0.25 if d.pick(0, 1) else (x > 1).to(d.dtype) + 0.5


def judged(d):
    """Places and counts of what is larger; whole numbers."""
    x = d.value(lambda v: v.dim() and v.numel())
    kind = d.pick("argmax", "count", "sign", "bucket", "any")
    if kind == "argmax":
        return x.argmax(d.dim(x), keepdim=True)
    if kind == "count":
        return (x > 0.3).sum(d.dim(x))
    if kind == "sign":
        return torch.signbit(x).long() + (x > 0.1)
    if kind == "any":
        return (x.abs() > 1).any(d.dim(x)).long()
    return torch.bucketize(x.contiguous(), torch.tensor([-1.0, 0.03, 0.7], dtype=x.dtype))


def drop(d):
    """Dropout; its mask is drawn in float32 whatever the network's type is."""
    x = d.value()
    ones = torch.ones_like(x, dtype=torch.float32)
    if d.pick(0, 1):
        return x * F.dropout(ones, d.pick(0.1, 0.5, 0.9)).to(x.dtype)
    return x + torch.rand_like(ones).to(x.dtype)


def detached(d):
    x = d.value()
    if d.pick(0, 1):
        return x.detach() * 0.5 + x
    with torch.no_grad():
        scale = x.abs().sigmoid()
    return x * scale


def chosen(d):
    """Control flow that depends on what is computed; PyTorch refuses strides with gaps."""
    x = d.value(lambda v: v.numel()).contiguous()
    above = x.sum() > d.pick(-100.0, 100.0)
    if torch.compiler.is_compiling():
        return torch.cond(above, _sine, _double, (x,))
    return _sine(x) if above else _double(x)


def _sine(x):
    return x.sin() + 1


def _double(x):
    return x * 2 - 1


STEPS = {
    function: 4,
    careful: 2,
    binary: 5,
    constant: 2,
    reduce: 2,
    scan: 1,
    norm: 2,
    converted: 1,
    integers: 2,
    to_float: 2,
    judged: 1,
    drop: 0.5,
    detached: 0.5,
    chosen: 0.2,
}
