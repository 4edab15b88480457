"""First call of a small MLP with nothing compiled before: the ``cpu`` backend beside aot_eager.

Each in a fresh process, interleaved; seconds without ``import torch``, and what ours takes beyond
aot_eager's, by the clock and of the processor's time, which other programs disturb less. Target: at
most 0.25 s beyond. "cpu+cache" looks the graph up in an empty cache and keeps it there, as a user's
first call does; the others do without.

    python benchmarks/first_call_mlp.py [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time

from common import THREADS, here, in_fresh_process, interleaved, spread

VARIANTS = ("aot_eager", "aten", "cpu", "cpu+cache")


def measure(variant: str, folder: str) -> tuple[float, float]:
    backend, _, cache = variant.partition("+")
    os.environ |= {"DOVETAIL_CACHE_DIR": folder} if cache else {"DOVETAIL_CACHE": "0"}
    import torch
    from torch import nn

    torch.set_num_threads(THREADS)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).eval()
    x = torch.randn(8, 64)
    start, used = time.perf_counter(), time.process_time()
    with torch.no_grad():
        torch.compile(model, backend=backend)(x)
    return time.perf_counter() - start, time.process_time() - used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("variant", nargs="?", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(arguments.variant, folder)))
        return
    for variant in VARIANTS:  # writes bytecode
        in_fresh_process(here(__file__), variant)
    results = interleaved(here(__file__), VARIANTS, arguments.rounds)
    for number, clock in enumerate(("elapsed", "processor")):
        seconds = {name: [row[number] for row in rows] for name, rows in results.items()}
        for name, taken in seconds.items():
            pairs = zip(taken, seconds["aot_eager"], strict=True)
            over = statistics.median(ours - base for ours, base in pairs)
            print(f"{clock:<12}{name:<12}{spread(taken)}   beyond aot_eager {over:6.3f}")


if __name__ == "__main__":
    main()
