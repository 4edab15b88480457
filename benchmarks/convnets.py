"""Networks of convolutions that ``dovetail bench`` does not have, against eager and Inductor.

python benchmarks/convnets.py [--rounds N] [--threads N] [--batch N] [NAME …]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from common import in_turns, in_turns_parser, row

F = nn.functional
RIVALS = ("eager", "inductor", "dovetail")


def stage(inner: int, outer: int, stride: int = 1) -> nn.Sequential:
    """A convolution, its norm, a ReLU."""
    return nn.Sequential(nn.Conv2d(inner, outer, 3, stride, 1), nn.BatchNorm2d(outer), nn.ReLU())


class Unet(nn.Module):  # type: ignore[misc]
    """Group norms; down, up by both ways of interpolating, with ways around."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = self.pair(3, 32), self.pair(32, 64), self.pair(64, 64)
        self.up, self.out = self.pair(128, 32), self.pair(64, 32)
        self.head = nn.Conv2d(32, 3, 1)

    @staticmethod
    def pair(inner: int, outer: int) -> nn.Sequential:
        """Two convolutions, each with its norm."""
        parts: list[nn.Module] = []
        for width in (inner, outer):
            parts += [nn.Conv2d(width, outer, 3, padding=1), nn.GroupNorm(8, outer), nn.SiLU()]
        return nn.Sequential(*parts)

    def forward(self, x: Any) -> Any:
        """An image of the same size."""
        a = self.first(x)
        b = self.second(F.max_pool2d(a, 2))
        c = self.third(F.max_pool2d(b, 2))
        d = self.up(torch.cat((F.interpolate(c, scale_factor=2.0), b), 1))
        e = torch.cat((F.interpolate(d, scale_factor=2.0, mode="bilinear"), a), 1)
        return self.head(self.out(e))


class Pyramid(nn.Module):  # type: ignore[misc]
    """Features of four sizes, added up."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64, 128, 256)
        pairs = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(nn.Sequential(stage(i, o, 2), stage(o, o)) for i, o in pairs)
        self.across = nn.ModuleList(nn.Conv2d(o, 64, 1) for _, o in pairs)
        self.head = nn.Conv2d(64, 19, 3, padding=1)

    def forward(self, x: Any) -> Any:
        """Scores of each point."""
        found = []
        for down, across in zip(self.down, self.across, strict=True):
            x = down(x)
            found.append(across(x))
        total = found.pop()
        while found:
            larger = found.pop()
            total = larger + F.interpolate(total, size=larger.shape[-2:], mode="nearest")
        return F.interpolate(self.head(total), scale_factor=2.0, mode="bilinear")


class Shuffled(nn.Module):  # type: ignore[misc]
    """Half of the channels changed, then all shuffled."""

    def __init__(self, blocks: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 48, 3, 2, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(stage(24, 24), stage(24, 24)) for _ in range(blocks)
        )

    def forward(self, x: Any) -> Any:
        """A mean of each channel."""
        x = F.max_pool2d(F.relu(self.first(x)), 3, 2, 1)
        for block in self.blocks:
            kept, changed = x.chunk(2, 1)
            x = F.channel_shuffle(torch.cat((kept, block(changed)), 1), 2)
        return x.mean((2, 3))


def autoencoder() -> nn.Module:
    """Transposed convolutions."""
    up = [nn.ConvTranspose2d(i, o, 4, 2, 1) for i, o in ((128, 64), (64, 32), (32, 3))]
    down = (stage(3, 32, 2), stage(32, 64, 2), stage(64, 128, 2))
    return nn.Sequential(*down, up[0], nn.ReLU(), up[1], nn.ReLU(), up[2], nn.Tanh())


def style() -> nn.Module:
    """Reflected borders and instance norms."""
    parts: list[nn.Module] = []
    for inner, outer, stride in ((3, 16, 1), (16, 32, 2), (32, 32, 1), (32, 32, 1)):
        parts += [nn.ReflectionPad2d(1), nn.Conv2d(inner, outer, 3, stride)]
        parts += [nn.InstanceNorm2d(outer, affine=True), nn.ReLU()]
    return nn.Sequential(*parts, nn.Upsample(scale_factor=2), nn.Conv2d(32, 3, 3, padding=1))


CASES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "unet": (Unet, 96),
    "pyramid": (Pyramid, 128),
    "shuffled": (Shuffled, 128),
    "autoencoder": (autoencoder, 64),
    "style": (style, 64),
}


def main() -> None:
    """Print a table."""
    parser = in_turns_parser(__doc__)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    for name in options.names or CASES:
        make, size = CASES[name]
        model, x = make().eval(), torch.randn(options.batch, 3, size, size)
        with torch.no_grad():
            times = in_turns(model, (x,), RIVALS, options.rounds)
            print(row(f"{name:12}", RIVALS, times), flush=True)


if __name__ == "__main__":
    main()
