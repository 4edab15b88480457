"""What two choices of the cpu backend are worth on the models of ``dovetail bench``.

``channels_last``: convolutions in the layout that PyTorch's kernels run best in. ``onednn``: large
products by oneDNN where MKL leaves the widest vectors unused (only on such processors). Each model
runs with and without, in fresh processes, interleaved; a ratio below 1 says that the choice pays.

    python benchmarks/choices.py [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from common import THREADS, here, interleaved, spread

CASES = {"channels_last": ("resnet18", "mobilenet"), "onednn": ("gpt", "bert", "vit")}
SECONDS = 1.0


def leave_out(choice: str) -> None:
    """Turn a choice off in this process."""
    from dovetail.backends.cpu.backend import CpuBackend
    from dovetail.schedule import program
    from dovetail.schedule.cpu.library import FILLING

    if choice == "channels_last":
        CpuBackend.lay_out = lambda _, segment, __: segment  # type: ignore[method-assign]
    else:
        program.fills = lambda call, _: call.op in FILLING


def measure(name: str, left_out: str) -> dict[str, float]:
    """Seconds of the fastest call in a while."""
    import torch

    from dovetail.bench import cases

    torch.set_num_threads(THREADS)
    if left_out:
        leave_out(left_out)
    model, given = cases.make(name)
    compiled = torch.compile(model, backend="dovetail")
    with torch.no_grad():
        best, end = fastest(compiled, given, 3), time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            best = min(best, fastest(compiled, given, 1))
    return {"seconds": best}


def fastest(fn: Any, given: Any, times: int) -> float:
    """The shortest of a few calls."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        fn(*given)
        found.append(time.perf_counter() - start)
    return min(found)


def main() -> None:
    """Print ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("variant", nargs="?", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant:
        name, _, left_out = arguments.variant.partition("/")
        print(json.dumps(measure(name, left_out)))
        return
    for choice, names in CASES.items():
        variants = [f"{name}{end}" for name in names for end in ("/", f"/{choice}")]
        results = interleaved(here(__file__), variants, arguments.rounds)
        for name in names:
            with_it = [r["seconds"] for r in results[f"{name}/"]]
            without = [r["seconds"] for r in results[f"{name}/{choice}"]]
            ratios = [a / b for a, b in zip(with_it, without, strict=True)]
            print(f"{choice:<14}{name:<10} with / without {spread(ratios)}")


if __name__ == "__main__":
    main()
