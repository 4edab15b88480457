"""First call with PyTorch's precompile over Dynamo's own trace, for four models.

A first process compiles with ``TORCH_CACHING_PRECOMPILE=1`` and saves. Then new processes in turns:
one restores the code, one traces for ``backend="eager"``. Both have imported PyTorch's compiler;
what is timed is ``torch.compile(…)``, where entries are read, and the first call. The processor's
seconds of that process are beside it, for a machine that does other things too. Target: 0.5 x.

    python benchmarks/precompile.py [--rounds N] [--threads N] [case ...]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from common import THREADS, here, spread

# A transformer of four blocks, ResNet-18, MobileNet-like, a tagger.
CASES = ("gpt", "resnet18", "mobilenet", "lstm")
TARGET = 0.5


def measure(case: str, backend: str, threads: int, save: bool) -> dict[str, float]:
    """Seconds, and seconds of the processor, until the first result."""
    import torch

    from dovetail.bench.cases import make

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, inputs = make(case)
    model.eval()
    torch.compile(lambda x: x, backend="eager")  # imports PyTorch's compiler
    from torch._dynamo.utils import counters

    start, used = time.perf_counter(), time.process_time()
    with torch.no_grad():
        torch.compile(model, backend=backend)(*inputs)
    found = {"wall": time.perf_counter() - start, "processor": time.process_time() - used}
    if save:
        torch.compiler.save_cache_artifacts()
    return {**found, "traces": counters["frames"]["total"]}


def process(case: str, backend: str, threads: int, folder: str, *more: str) -> dict[str, float]:
    """The same in a new process; with dovetail as the backend it finds what was saved."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DOVETAIL_", "TORCH"))}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process compiles our sources
    env |= {
        "OMP_NUM_THREADS": str(threads),
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch",
        "DOVETAIL_CACHE_DIR": f"{folder}/cache",
        "TORCH_CACHING_PRECOMPILE": str(int(backend != "eager")),
    }
    command = [sys.executable, here(__file__), "--threads", str(threads), "--run", backend]
    done = subprocess.run(
        [*command, *more, case], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compare(case: str, rounds: int, threads: int) -> None:
    """Save once, then both in turns."""
    with tempfile.TemporaryDirectory() as folder:
        process(case, "dovetail", threads, folder, "--save")
        pairs = [
            [process(case, backend, threads, folder) for backend in ("eager", "dovetail")]
            for _ in range(rounds)
        ]
    traces = {row[1]["traces"] for row in pairs}
    if traces != {0}:
        sys.exit(f"{case}: {traces} traces where there should be none")
    for kind in ("wall", "processor"):
        eager, ours = ([row[n][kind] for row in pairs] for n in (0, 1))
        ratio = statistics.median(ours) / statistics.median(eager)
        both = f"eager {spread(eager)}  restored {spread(ours)}"
        print(f"{case:<12}{kind:<10} s {both}  ratio {ratio:.2f}  target {TARGET}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("cases", nargs="*", default=CASES)
    chosen = parser.parse_args()
    for case in chosen.cases:
        if chosen.run:
            print(json.dumps(measure(case, chosen.run, chosen.threads, chosen.save)))
        else:
            compare(case, chosen.rounds, chosen.threads)


if __name__ == "__main__":
    main()
