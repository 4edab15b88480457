"""Matrix products of our own beside PyTorch's, over a grid of sizes.

``plain``: x @ w.T + b with weights as ``nn.Linear`` has them, against ``F.linear``. ``packed``: the
same, exported, so that weights are packed ahead of time, against MKL's packed product (and beside
oneDNN's). ``gelu``: exported with a GELU behind, against PyTorch's. ``dynamic``: one file for any
number of rows, against files of ours for each of them. With ``--dtype bfloat16`` what is packed is
measured against oneDNN's alone: MKL has no such product. All are called from Python, in turns, in
one process; the fastest of some rounds counts, since others may use the machine, and one thread is
measured in processor time. A ratio below 1 says that ours is faster.

    python benchmarks/gemm.py [--threads N] [--rounds N] [--only plain packed gelu dynamic]
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dovetail

F = nn.functional
# Sums and columns; each with all these rows, up to a limit. Odd sizes are among them.
PAIRS = (
    (64, 64),
    (256, 256),
    (100, 300),
    (768, 768),
    (1000, 257),
    (256, 1024),
    (1024, 256),
    (768, 3072),
    (3072, 768),
    (4096, 1024),
)
ROWS = (1, 2, 4, 8, 16, 33, 64, 128, 512, 2048)
DYNAMIC_PAIRS, DYNAMIC_ROWS = (
    ((100, 300), (768, 768), (768, 3072), (3072, 768)),
    (1, 7, 64, 197, 512),
)
KINDS = ("plain", "packed", "gelu", "dynamic")
COUNT = 60  # shapes
MOST = 2**30  # multiplications of a shape
SECONDS = 0.004  # of a measurement: shorter than what a scheduler takes away


def shapes(kind: str) -> Iterator[tuple[int, int, int]]:
    """Rows, sum, columns."""
    if kind == "dynamic":
        yield from ((m, k, n) for k, n in DYNAMIC_PAIRS for m in DYNAMIC_ROWS)
        return
    found = [(m, k, n) for k, n in PAIRS for m in ROWS if m * k * n <= MOST]
    found.sort(key=lambda s: s[0] * s[1] * s[2])
    yield from (found[n * len(found) // COUNT] for n in range(COUNT))


def rivals(
    kind: str, m: int, k: int, n: int, folder: Path, dtype: torch.dtype
) -> dict[str, Callable[[], Any]]:
    """What is compared, ours first."""
    x, layer = torch.randn(m, k).to(dtype), nn.Linear(k, n).to(dtype)
    w, b = layer.weight.detach(), layer.bias.detach()
    if kind == "plain":
        torch.compiler.reset()
        ours = torch.compile(F.linear, backend="dovetail", dynamic=False)
        return {"ours": lambda: ours(x, w, b), "eager": lambda: F.linear(x, w, b)}
    model = nn.Sequential(layer, nn.GELU()) if kind == "gelu" else layer
    run = loaded(model, x, folder / f"{kind}_{m}_{k}_{n}.dvt")
    if kind == "dynamic":
        path = folder / f"{kind}_{k}_{n}.dvt"
        every = dovetail.load(path) if path.exists() else loaded(model, x, path, most=2048)
        return {"ours": lambda: every(x), "static": lambda: run(x)}
    if kind == "gelu":
        return {"ours": lambda: run(x), "eager": lambda: F.gelu(F.linear(x, w, b))}
    dnn = torch.ops.mkldnn._reorder_linear_weight(w, m)  # noqa: SLF001
    dnn_linear = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001
    onednn = {"onednn": lambda: dnn_linear(x, dnn, b, "none", [], "")}
    if dtype != torch.float32:
        return {"ours": lambda: run(x), **onednn}
    mkl = torch.ops.mkl._mkl_reorder_linear_weight(w, m)  # noqa: SLF001
    mkl_linear = torch.ops.mkl._mkl_linear  # noqa: SLF001
    return {"ours": lambda: run(x), "mkl": lambda: mkl_linear(x, mkl, w, b, m), **onednn}


def loaded(model: nn.Module, x: torch.Tensor, path: Path, most: int = 0) -> Callable[..., Any]:
    """A model, exported; for up to so many rows where there is a limit, else for those of ``x``."""
    dynamic = ({0: torch.export.Dim("rows", min=1, max=most)},) if most else None
    example = x.expand(2, -1).contiguous() if len(x) == 1 and most else x
    dovetail.export(model.eval(), (example,), dynamic_shapes=dynamic, backend="cpu").save(path)
    return dovetail.load(path)


def fastest(
    fns: dict[str, Callable[[], Any]], rounds: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Seconds of each, measured in turns."""
    best = dict.fromkeys(fns, math.inf)
    for fn in fns.values():
        fn()
    for _ in range(rounds):
        for name, fn in fns.items():
            once = best[name] if best[name] < math.inf else SECONDS
            repeats = max(1, int(SECONDS / once))
            start = clock()
            for _ in range(repeats):
                fn()
            best[name] = min(best[name], (clock() - start) / repeats)
    return best


def main() -> None:
    """Print a line a shape, then the geometric mean and the worst."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--every", type=int, default=1, help="of so many shapes one")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--only", nargs="*", choices=KINDS, default=KINDS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        for kind in arguments.only:
            ratios: dict[tuple[int, int, int], float] = {}
            for shape in list(shapes(kind))[:: arguments.every]:
                fns = rivals(kind, *shape, Path(folder), getattr(torch, arguments.dtype))
                best = fastest(fns, arguments.rounds, clock)
                ours, other = list(best.values())[:2]
                ratios[shape] = ours / other
                texts = "  ".join(f"{name} {t * 1e6:9.1f} us" for name, t in best.items())
                print(f"{kind:7}{shape!s:18}{texts}  {ratios[shape]:.2f}", flush=True)
            mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
            worst = max(ratios, key=lambda s: ratios[s])
            text = f"{kind}: geometric mean of {len(ratios)} {mean:.3f}, "
            print(f"{text}worst {ratios[worst]:.2f} at {worst}")


if __name__ == "__main__":
    main()
