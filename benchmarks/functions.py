"""Functions of float32, against eager and Inductor.

python benchmarks/functions.py [--rounds N] [--threads N] [NAME …]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from common import in_turns, in_turns_parser, row

F = torch.nn.functional
RIVALS = ("eager", "inductor", "cpu")
SIZE = 1 << 18
# Each with a range that most of its work is done for; where it ends functions are not defined.
CASES: dict[str, tuple[Callable[..., Any], tuple[float, float]]] = {
    **{n: (getattr(torch, n), (-9, 9)) for n in ("sin", "cos", "tan", "exp", "exp2", "expm1")},
    **{n: (getattr(torch, n), (0.01, 50)) for n in ("log", "log2", "log10", "log1p")},
    **{n: (getattr(torch, n), (-6, 6)) for n in ("sinh", "cosh", "tanh", "sigmoid")},
    **{n: (getattr(torch, n), (-0.99, 0.99)) for n in ("asin", "acos", "atanh")},
    **{n: (getattr(torch, n), (1.01, 30)) for n in ("asinh", "acosh", "atan")},
    **{n: (getattr(torch, n), (-3, 3)) for n in ("erf", "erfc")},
    "gelu": (F.gelu, (-5, 5)),
    "silu": (F.silu, (-9, 9)),
    "sin_cos": (lambda x: x.sin() * x.cos(), (-9, 9)),
    "pow": (lambda x: x**1.7, (0.01, 50)),
    "atan2": (lambda x: torch.atan2(x, 1 - x), (-9, 9)),
    "large_sin": (torch.sin, (1e6, 1e7)),
}


def main() -> None:
    """Print a table."""
    parser = in_turns_parser(__doc__, threads=1)
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    for name in options.names or CASES:
        fn, (low, high) = CASES[name]
        x = torch.empty(SIZE).uniform_(low, high)
        with torch.no_grad():
            times = in_turns(lambda x, fn=fn: fn(x), (x,), RIVALS, options.rounds)
            print(row(f"{name:12}", RIVALS, times), flush=True)


if __name__ == "__main__":
    main()
