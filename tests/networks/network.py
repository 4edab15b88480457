"""Random networks from a seed: products, convolutions, attention, and all that stands between.

``Network(seed)`` is a module; ``inputs(which)`` makes what it takes, for batches of two sizes.
Equal seeds make equal networks.
"""

from __future__ import annotations

import random

import torch
from torch import nn

from tests.networks import elements, moves, products
from tests.networks.drawing import LARGEST, Player, Recorder, Unfit, Weights

STEPS = {step.__name__: step for part in (elements, products, moves) for step in part.STEPS}
CHANCES = [chance for part in (elements, products, moves) for chance in part.STEPS.values()]
SHAPES = (
    ("B", 3, 8, 8),
    ("B", 16, 7, 5),
    ("B", 4, 1, 9),
    (1, 8, 12, 12),
    ("B", 6, 16),
    ("B", 5, 17),
    (2, "B", 8),
    ("B", 33),
    ("B",),
    (17, 4),
    (1, 1),
    (8,),
    (),
    ("B", 2, 3, 4, 5),
    ("B", 0, 4),
    (6, "B"),
)
BATCHES = (3, 5)
LAYOUTS = ("plain", "plain", "plain", "transposed", "every other", "expanded", "offset", "last")


class Network(nn.Module):
    """Steps that were drawn, the parameters and state they ask for, and what is returned."""

    def __init__(self, seed: int, *, trains: bool = False, varies: bool = False) -> None:
        super().__init__()
        self.seed, self.trains = seed, trains
        chosen = random.Random(seed)
        weights, state = Weights(seed), []
        self.given = [(shape, chosen.choice(LAYOUTS)) for shape in chosen.sample(SHAPES, 3)]
        self.special = chosen.random() < 0.06 and not trains
        pools = [self.inputs(which) for which in range(2 if varies else 1)]
        self.steps = list(_drawn(chosen, pools, weights, state, trains))
        self.ambiguous = any(map(_is_ambiguous, pools[0]))
        count = len(pools[0])
        places = [*range(count - 3, count), *(chosen.randrange(count) for _ in range(2))]
        self.returned = tuple(places[chosen.randrange(2) :])
        self.weights = nn.ParameterList(nn.Parameter(w, requires_grad=trains) for w in weights)
        for n, value in enumerate(state):
            self.register_buffer(f"state{n}", value.zero_())
        self.states = len(state)

    def inputs(self, which: int = 0) -> list[torch.Tensor]:
        """Inputs whose batches have one of two sizes."""
        g = torch.Generator().manual_seed(self.seed + which)
        sizes = [[BATCHES[which] if n == "B" else n for n in shape] for shape, _ in self.given]
        made = [_laid_out(size, how, g) for size, (_, how) in zip(sizes, self.given, strict=True)]
        if self.special:
            _spoil(made)
        if self.trains:
            for x in made[:2]:
                x.requires_grad_()
        length = BATCHES[which] * 2
        return [*made, torch.randint(-9, 9, (length,), generator=g)]

    def forward(self, *inputs):
        values = list(inputs)
        state = [getattr(self, f"state{n}") for n in range(self.states)]
        for name, drawn in self.steps:
            values.append(STEPS[name](Player(drawn, values, self.weights, state)))
        return tuple(values[n] for n in self.returned)

    def text(self) -> str:
        """The steps, a line each."""
        first = len(self.given) + 1
        lines = [f"in{n} {shape} {layout}" for n, (shape, layout) in enumerate(self.given)]
        lines += [f"v{first + n} = {name} {drawn}" for n, (name, drawn) in enumerate(self.steps)]
        return "\n".join([*lines, f"return {self.returned}"])


def _drawn(chosen, pools, weights, state, trains):
    """Steps that work for the inputs of all pools, which they grow."""
    wanted = chosen.randint(4, 16)
    while wanted:
        name = chosen.choices(list(STEPS), CHANCES)[0]
        kept = len(weights), len(state)
        recorder = Recorder(chosen, pools[0], weights, state)
        made = _made(name, recorder, pools, weights, state, trains)
        if made is None:
            del weights[kept[0] :], state[kept[1] :]
            continue
        for pool, value in zip(pools, made, strict=True):
            pool.append(value)
        wanted -= 1
        yield name, tuple(recorder.drawn)


def _made(name, recorder, pools, weights, state, trains):
    """What a step makes of each pool, or None where it cannot be taken."""
    try:
        with torch.set_grad_enabled(trains):
            made = [STEPS[name](recorder)]
            made += [STEPS[name](Player(recorder.drawn, p, weights, state)) for p in pools[1:]]
    except (Unfit, RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
        return None
    return made if all(map(_is_fit, made)) else None


def _is_fit(value):
    if not isinstance(value, torch.Tensor) or value.numel() > LARGEST or value.dim() > 6:
        return False
    if not value.numel() or not value.is_floating_point():
        return value.is_floating_point() or value.dtype == torch.int64
    known = value.detach()[value.isfinite()]
    return bool(known.numel()) and float(known.abs().max()) < 50


def _is_ambiguous(value):
    """Whether strides may be those of either layout of images: decision 265."""
    kinds = {4: torch.channels_last, 5: torch.channels_last_3d}
    kind = kinds.get(value.dim())
    both = kind and value.is_contiguous() and value.is_contiguous(memory_format=kind)
    return bool(both)


def _laid_out(size, how, g):
    """Random numbers, laid out in memory in some way."""
    if how == "transposed" and len(size) > 1:
        return torch.randn([size[-1], *size[:-1]], generator=g).movedim(0, -1)
    if how == "every other" and size:
        return torch.randn([*size[:-1], 2 * size[-1] + 1], generator=g)[..., 1::2]
    if how == "expanded" and size:
        return torch.randn([1, *size[1:]], generator=g).expand(size)
    if how == "offset":
        count = torch.Size(size).numel()
        return torch.randn(count + 3, generator=g)[3:].view(size)
    made = torch.randn(size, generator=g)
    return made.to(memory_format=torch.channels_last) if how == "last" and len(size) == 4 else made


def _spoil(values):
    """Numbers that are none, and infinite ones."""
    for value in values:
        if value.numel() and value.dim() and 0 not in value.stride():
            value.select(0, 0).fill_(float("nan") if value.dim() % 2 else float("inf"))
