"""Programs that move elements from one layout to another, against eager and Inductor.

python benchmarks/layouts.py [--rounds N] [NAME …]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from common import in_turns, in_turns_parser, row

LAST = torch.channels_last
RIVALS = ("eager", "inductor", "cpu")
CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "transpose": (lambda x: x.t().contiguous(), (1000, 1000)),
    "transpose_1024": (lambda x: x.t().contiguous(), (1024, 1024)),
    "transpose_half": (lambda x: x.t().contiguous(), (1024, 1024, torch.bfloat16)),
    "transpose_add": (lambda x: x.t() + x.view(800, 1000), (1000, 800)),
    "reversed_axes": (lambda x: x.permute(2, 1, 0).contiguous(), (96, 80, 112)),
    "heads": (lambda x: x.view(8, 128, 8, 32).transpose(1, 2).contiguous(), (8, 128, 256)),
    "heads_turned": (
        lambda x: x.view(8, 128, 8, 32).permute(0, 2, 3, 1).contiguous(),
        (8, 128, 256),
    ),
    "heads_merged": (lambda x: x.transpose(1, 2).reshape(8, 128, 256), (8, 8, 128, 32)),
    "to_channels_last": (lambda x: x.to(memory_format=LAST), (8, 64, 56, 56)),
    "from_channels_last": (lambda x: x.permute(0, 3, 1, 2).contiguous(), (8, 56, 56, 64)),
    "colours": (lambda x: x.to(memory_format=LAST), (1, 3, 224, 224)),
    "colours_apart": (lambda x: x.permute(0, 3, 1, 2).contiguous(), (1, 224, 224, 3)),
    "patches": (
        lambda x: x.view(2, 3, 14, 16, 14, 16).permute(0, 2, 4, 1, 3, 5).reshape(2, 196, 768),
        (2, 3, 224, 224),
    ),
    "windows": (
        lambda x: x.view(2, 8, 7, 8, 7, 96).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, 96),
        (2, 56, 56, 96),
    ),
    "pixel_shuffle": (lambda x: torch.pixel_shuffle(x, 2), (2, 64, 28, 28)),
    "pairs_turned": (
        lambda x: torch.stack((x[..., ::2] - x[..., 1::2], x[..., ::2] + x[..., 1::2]), -1).flatten(
            -2
        ),
        (8, 8, 128, 64),
    ),
}


def main() -> None:
    """Print a table."""
    parser = in_turns_parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    for name in options.names or CASES:
        fn, given = CASES[name]
        sizes = [n for n in given if isinstance(n, int)]
        x = torch.randn(sizes).to(given[-1] if len(sizes) < len(given) else torch.float32)
        with torch.no_grad():
            print(row(f"{name:19}", RIVALS, in_turns(fn, (x,), RIVALS, options.rounds)))


if __name__ == "__main__":
    main()
