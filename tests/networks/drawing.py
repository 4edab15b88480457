"""What a step of a random network asks for: drawn once and written down, then played again.

A step is a function of one of these. The recorder draws values, settings, weights and state; the
player hands out the same again, so that a network is the list of what its steps were given.
"""

from __future__ import annotations

import torch

LARGEST = 20_000  # elements of a value
SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 33)


class Unfit(Exception):
    """A step cannot be taken with the values there are."""


class Recorder:
    """Draws what a step asks for."""

    def __init__(self, random, values, weights, state):
        self.random, self.values = random, values
        self.weights, self.state, self.drawn = weights, state, []

    @property
    def dtype(self):
        """The type of the network's floating-point numbers."""
        return self.values[0].dtype

    def _keep(self, drawn):
        self.drawn.append(drawn)
        return drawn

    def pick(self, *choices):
        return self._keep(self.random.choice(choices))

    def below(self, count):
        if count <= 0:
            raise Unfit
        return self._keep(self.random.randrange(count))

    def between(self, low, high):
        return self._keep(self.random.randint(low, high))

    def size(self):
        return self._keep(self.random.choice(SIZES[1:]))

    def dim(self, x):
        return self.below(x.dim())

    def value(self, fits=lambda _: True, kind="float"):
        """One of the values, rather one of the last."""
        places = [n for n, v in enumerate(self.values) if _is_of(v, kind) and fits(v)]
        if not places:
            raise Unfit
        late = places[-4:] if self.random.random() < 0.7 else places
        return self.values[self._keep(self.random.choice(late))]

    def weight(self, *shape, scale=None):
        """A new parameter, small enough that sums over all but its first dimension stay small."""
        count = max(1, torch.Size(shape[1:]).numel())
        made = torch.randn(shape, generator=self.weights.generator)
        self.weights.append(made * (count**-0.5 if scale is None else scale))
        self._keep(len(self.weights) - 1)
        return self.weights[-1]

    def buffer(self, *shape, dtype=torch.float32):
        """New state that begins with zeros."""
        self.state.append(torch.zeros(shape, dtype=dtype))
        self._keep(len(self.state) - 1)
        return self.state[-1]


class Player:
    """Hands out what was drawn."""

    def __init__(self, drawn, values, weights, state):
        self.drawn, self.position = drawn, 0
        self.values, self.weights, self.state = values, weights, state

    @property
    def dtype(self):
        return self.values[0].dtype

    def pick(self, *_):
        self.position += 1
        return self.drawn[self.position - 1]

    below = between = size = dim = pick

    def value(self, *_, **__):
        return self.values[self.pick()]

    def weight(self, *_, **__):
        return self.weights[self.pick()]

    def buffer(self, *_, **__):
        return self.state[self.pick()]


class Weights(list):
    """New parameters and where their numbers come from."""

    def __init__(self, seed):
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)


def _is_of(value, kind):
    if kind == "float":
        return value.dtype in (torch.float32, torch.float64)
    return kind == "any" or str(value.dtype).startswith(f"torch.{kind}")


def fits(x, y):
    """Whether two values broadcast."""
    pairs = zip(reversed(x.shape), reversed(y.shape), strict=False)
    return all(m == n or 1 in (m, n) for m, n in pairs)
