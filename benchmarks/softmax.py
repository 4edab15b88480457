"""Softmax of rows from a thousand to two million elements, against eager and Inductor.

python benchmarks/softmax.py [--rounds N] [--log]
"""

from __future__ import annotations

import torch

from common import in_turns, in_turns_parser, row

LENGTHS = [1 << n for n in range(10, 22)]
ELEMENTS = 1 << 22  # in all rows together
RIVALS = ("eager", "inductor", "cpu")


def main() -> None:
    """Print a table."""
    parser = in_turns_parser(__doc__)
    parser.add_argument("--log", action="store_true", help="the logarithm of it")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    function = torch.log_softmax if options.log else torch.softmax
    for length in LENGTHS:
        x = torch.randn(ELEMENTS // length, length)
        with torch.no_grad():
            times = in_turns(lambda x: function(x, -1), (x,), RIVALS, options.rounds)
        print(row(f"{x.shape[0]:5} x {length:<8}", RIVALS, times))


if __name__ == "__main__":
    main()
