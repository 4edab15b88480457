"""Random programs from a seed: pointwise, views, reductions, scans, casts, joins, mutation."""

from __future__ import annotations

import random

import torch
from torch.fx.experimental.proxy_tensor import make_fx

UNARY = ["relu", "sigmoid", "tanh", "abs", "neg", "sin", "exp", "floor", "square", "cos", "erf"]
BINARY = ["add", "sub", "mul", "maximum", "minimum"]
SHAPES = [(6, 8), (8,), (6, 1), (1, 8), (2, 3, 8), (24, 2), (6, 4, 2)]


class Choices:
    """Draws made beforehand, so that tracing the program draws nothing."""

    def __init__(self, draws):
        self.draws, self.position = draws, 0

    def random(self):
        self.position += 1
        return self.draws[self.position % len(self.draws)]

    def randrange(self, count):
        return int(self.random() * count)

    def randint(self, low, high):
        return low + self.randrange(high - low + 1)

    def choice(self, items):
        return items[self.randrange(len(items))]


class Program:
    """A random program of ``length`` steps; equal seeds make equal programs."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.shapes = self.random.sample(SHAPES, 3)
        self.steps = self.random.randint(5, 40)
        self.draws = [self.random.random() for _ in range(5 * self.steps)]
        self.seed = seed

    def inputs(self, device="cpu"):
        g = torch.Generator().manual_seed(self.seed)
        return tuple(torch.randn(s, generator=g).to(device) for s in self.shapes)

    def __call__(self, *inputs):
        chosen = Choices(self.draws)
        values = list(inputs)
        if chosen.random() < 0.2:
            inputs[0].mul_(0.5)
        for _ in range(self.steps):
            values.append(step(chosen, values))
        return tuple(values[-3:])


def step(chosen, values):
    """One more value, made from those there are."""
    rare = ["fold", "fold", "other", "scan"]
    kind = chosen.choice(["unary"] * 4 + ["binary"] * 4 + ["view"] * 3 + rare)
    x = values[chosen.randrange(len(values))]
    if kind == "unary":
        name = chosen.choice(UNARY)
        x = x.clamp(-4, 4) if name in ("exp", "square") else x
        return getattr(torch, name)(x.float())
    if kind == "binary":
        return binary(chosen, x, values)
    if kind == "view":
        return view(chosen, x)
    if kind == "fold":
        return fold(chosen, x)
    if kind == "scan":
        return scan(chosen, x)
    return other(chosen, x)


def binary(chosen, x, values):
    fitting = [v for v in values if broadcasts(v.shape, x.shape)]
    y = fitting[chosen.randrange(len(fitting))]
    result = getattr(torch, chosen.choice(BINARY))(x, y)
    if result.numel() > 4096:
        return result.flatten()[:64].clone()
    return result.clamp(-50, 50)


def broadcasts(a, b):
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b), strict=False))


def view(chosen, x):
    kind = chosen.choice(["flat", "transpose", "slice", "unsqueeze", "expand", "select", "split"])
    if kind == "flat":
        return x.reshape(-1)
    if kind == "transpose" and x.dim() > 1:
        return x.transpose(0, -1)
    if kind == "slice" and x.dim() and x.shape[0] > 2:
        return x[1:] if chosen.random() < 0.5 else x[::2]
    if kind == "unsqueeze" and x.dim() < 4:
        return x.unsqueeze(chosen.randint(0, x.dim()))
    if kind == "expand" and x.dim() and x.shape[0] == 1:
        return x.expand(3, *x.shape[1:])
    if kind == "select" and x.dim() > 1:
        return x.select(0, x.shape[0] - 1)
    if kind == "split" and x.numel() % 2 == 0 and x.numel():
        return x.reshape(2, -1)
    return x.clone()


def fold(chosen, x):
    kind = chosen.choice(["sum", "mean", "amax", "softmax", "var", "layer_norm", "amin"])
    if not x.dim() or not x.numel():
        return x + 1
    dim = chosen.randrange(x.dim())
    keep = chosen.random() < 0.5
    if kind == "softmax":
        return x.softmax(dim)
    if kind == "layer_norm":
        return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=1e-2)
    if kind == "var":
        return x.var(dim, keepdim=keep, correction=0)
    return getattr(x, kind)(dim, keepdim=keep)


def scan(chosen, x):
    """Running sums, products and extremes, forwards and backwards."""
    kind = chosen.choice(["sum", "sum", "prod", "max", "min", "back", "count"])
    if not x.dim() or not x.numel():
        return x - 1
    dim = chosen.randrange(x.dim())
    if kind == "sum":
        return x.cumsum(dim).clamp(-20, 20)
    if kind == "prod":
        return (x.sin() * 0.1 + 1).cumprod(dim)
    if kind == "back":
        return (x * 0.5).flip(dim).cumsum(dim).flip(dim).clamp(-20, 20)
    if kind == "count":
        return ((x > 0).cumsum(dim) - 1).float()
    return (x.cummax(dim) if kind == "max" else x.cummin(dim)).values


def other(chosen, x):
    kinds = ["where", "cat", "cast", "half", "pad", "flip", "scale", "mutate", "pick", "gather"]
    kind = chosen.choice([*kinds, "bfloat16", "count"])
    if kind == "where":
        return torch.where(x > 0, x, x * 0.1)
    if kind == "cat" and x.dim() and x.numel() < 512:
        return torch.cat([x, x * 2], chosen.randrange(x.dim()))
    if kind == "cast":
        return (x.clamp(-30, 30) * 3).to(torch.int64).float()
    if kind in ("half", "bfloat16"):
        return x.to(torch.float64 if kind == "half" else torch.bfloat16).mul(0.5).float()
    if kind == "pad" and x.dim():
        return torch.nn.functional.pad(x, (1, 2))[..., :-1]
    if kind == "flip" and x.dim():
        return x.flip(chosen.randrange(x.dim()))
    return rarer(chosen, kind, x)


def rarer(chosen, kind, x):
    """Writes, gathers and counts."""
    if kind == "mutate" and x.dim() and x.shape[0] > 1:
        return mutated(chosen, x)
    if kind == "pick" and x.dim() and x.numel():
        # Rounded: of values that are equal but for a rounding, as erf's near 1, any may come first.
        order = (x.flatten()[: x.shape[0]] * 8).round().argsort(stable=True)
        return x.index_select(0, order % x.shape[0])
    if kind == "gather" and x.dim() and x.numel():
        dim = chosen.randrange(x.dim())
        places = torch.arange(x.numel(), device=x.device).reshape(x.shape) * 7 % x.shape[dim]
        return x.gather(dim, places)
    if kind == "count" and x.dim() and x.numel():
        return (x > 0).sum(0).to(torch.int32).mul(3).float()
    return x * 1.5


def mutated(chosen, x):
    """In-place writes to a part of a copy."""
    y = x.clone()
    if chosen.random() < 0.5:
        y[1:] += 1
    else:
        y[0] = 2.0
    return y.mul_(0.5) if chosen.random() < 0.5 else y


def check(seed: int, backend: str = "cpu", options: dict | None = None, device: str = "cpu") -> str:
    """What differs from eager for one seed; empty when nothing does.

    The choices are made before Dynamo sees the program: tracing them is most of the time.
    """
    program = Program(seed)
    torch._dynamo.reset()
    with torch.no_grad():
        written = make_fx(program)(*program.inputs(device))
        exact = written(*(x.double() for x in program.inputs(device)))  # no rounding on the way
        given, mine = program.inputs(device), program.inputs(device)
        expected = program(*given)
        actual = torch.compile(written, backend=backend, dynamic=False, options=options)(*mine)
    triples = zip((*expected, *given), (*actual, *mine), (*exact, *given), strict=True)
    for place, (a, b, c) in enumerate(triples):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"seed {seed}: {b.dtype}{list(b.shape)} for {a.dtype}{list(a.shape)}"
        # Where eager itself is far from float64 (a step function, a cancellation) so may we be.
        slack = 4 * (a.double() - c.double()).abs() + 1e-4 + 1e-4 * a.double().abs()
        off = (a.double() - b.double()).abs() > slack
        if bool(off.any()) and place < len(exact):
            off &= ~at_a_step(written, program.inputs(device), place, b)
        if bool(off.any()):
            return f"seed {seed}: off by {(a - b).abs().max().item()}"
    return ""


def at_a_step(written, inputs, place, result):
    """Where inputs and functions that differ in their last bits make this the exact result.

    The sum of a normalised row is zero but for its rounding, and the floor of that anything.
    """
    rounded = Rounded(written)
    reached = torch.zeros(result.shape, dtype=torch.bool, device=result.device)
    with torch.no_grad():
        for _ in range(16):
            near = rounded.run(*(rounded.rounding(x.double()) for x in inputs))[place]
            reached |= (near.double() - result.double()).abs() <= 1e-4
    return reached


class Rounded(torch.fx.Interpreter):
    """A program in float64 whose functions round as those of float32 may, each time otherwise."""

    INEXACT = ("sigmoid", "tanh", "sin", "cos", "exp", "erf", "sum", "mean", "cumsum", "cumprod")

    def __init__(self, written):
        super().__init__(written)
        self.noise = torch.Generator().manual_seed(0)

    def call_function(self, target, args, kwargs):
        result = super().call_function(target, args, kwargs)
        name = target.name().removeprefix("aten::").partition(".")[0]
        inexact = name in self.INEXACT and result.dtype == torch.float64
        return self.rounding(result) if inexact else result

    def rounding(self, x):
        """The values, each off by about a bit of float32."""
        bits = 2**-23 * torch.randn(x.shape, generator=self.noise, dtype=torch.float64)
        return x * (1 + bits.to(x.device))
