"""First call of a 4-block transformer: dovetail's pass-through backend against aot_eager.

Each in a fresh process, interleaved; seconds without ``import torch``. Target: at most 1.3 x.

    python benchmarks/first_call.py [--rounds N] [--train]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time

from common import THREADS, here, interleaved, spread

VARIANTS = ("aot_eager", "aten")


def measure(backend: str, train: bool) -> dict[str, float]:
    import torch
    from torch import nn

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).train(train)
    x = torch.randn(4, 32, 256)
    compiled = torch.compile(model, backend=backend)
    start = time.perf_counter()
    with torch.set_grad_enabled(train):
        out = compiled(x)
        if train:
            out.sum().backward()
    first = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": first, "peak_mb": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--train", action="store_true", help="forward and backward")
    parser.add_argument("variant", nargs="?", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant:
        name, _, mode = arguments.variant.partition("+")
        print(json.dumps(measure(name, mode == "train")))
        return
    suffix = "+train" if arguments.train else ""
    variants = [v + suffix for v in VARIANTS]
    results = interleaved(here(__file__), variants, arguments.rounds)
    for variant in variants:
        rows = results[variant]
        memory = statistics.median(r["peak_mb"] for r in rows)
        print(f"{variant:<16} s {spread([r['seconds'] for r in rows])}  peak {memory:.0f} MB")
    pairs = zip(*(results[v] for v in variants), strict=True)
    ratios = [ours["seconds"] / base["seconds"] for base, ours in pairs]
    print(f"{'ratio':<16}   {spread(ratios)}  target 1.3")
    sys.exit(0)


if __name__ == "__main__":
    main()
