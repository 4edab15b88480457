"""First call in a new process, all compiled before, over the first call of ``backend="eager"``.

Each call in a process of its own, both sides in turns; the cache is a folder of its own, filled by
one process that is not counted. The time is from ``torch.compile`` to the first result, our imports
within, torch's and Dynamo's not; beside the clock's the processor's, which other programs disturb
less. Targets: 1.15 x for inference, frozen or not, 1.5 x for a forward and backward. Where others
use the cores, ``--threads 1``: threads that wait for each other count as the processor's time too.

    python benchmarks/warm_start.py [--rounds N] [--threads N] [CASE …]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import THREADS, here, in_fresh_process

MODELS = ("gpt", "resnet18", "mobilenet", "lstm")
CASES = {
    **{f"{name}{how}": 1.15 for name in MODELS for how in ("", "+freeze")},
    **{f"{name}+train": 1.5 for name in ("gpt", "resnet18")},
}


def models() -> Any:
    """The cases of ``dovetail bench``; importing dovetail is part of its first call."""
    path = Path(__file__).resolve().parent.parent / "src/dovetail/bench/cases.py"
    spec = importlib.util.spec_from_file_location("cases", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["cases"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure(case: str, backend: str, threads: int) -> dict[str, Any]:
    """Seconds of the first call, and what the cache said."""
    import torch
    import torch._dynamo  # no part of anybody's first call

    torch.set_num_threads(threads)
    name, _, how = case.partition("+")
    model, inputs = models().make(name)
    model.train(how == "train")
    options = {"freeze": True} if how == "freeze" and backend == "dovetail" else None
    assert "dovetail" not in sys.modules
    start, used = time.perf_counter(), time.process_time()
    with torch.set_grad_enabled(how == "train"):
        result = torch.compile(model, backend=backend, options=options)(*inputs)
        if how == "train":
            result.square().mean().backward()
    taken = time.perf_counter() - start, time.process_time() - used
    return {"taken": taken, "cache": said_by_cache() if backend == "dovetail" else []}


def said_by_cache() -> list[str]:
    """What was looked up, and what was found."""
    from dovetail import history

    return [f"{v.graph}: {v.state} {v.reason}" for c in history.recent() for v in c.cache]


def compare(case: str, target: float, rounds: int, threads: int) -> str:
    """A line of the table."""
    with tempfile.TemporaryDirectory() as folder:
        env = {"DOVETAIL_CACHE_DIR": folder, "OMP_NUM_THREADS": str(threads)}
        for backend in ("eager", "dovetail", "dovetail"):  # fills the cache, writes bytecode
            in_fresh_process(here(__file__), case, backend, str(threads), env=env)
        rows = []
        for number in range(rounds):
            print(f"\r{case}: round {number + 1}/{rounds} ", end="", file=sys.stderr)
            each = [(here(__file__), case, backend, str(threads)) for backend in BACKENDS]
            pair = [in_fresh_process(*command, env=env) for command in each]
            if missed := [said for said in pair[1]["cache"] if ": hit" not in said]:
                sys.exit(f"{case} was not all found in the cache: {missed}")
            rows.append([side["taken"] for side in pair])
    medians = [statistics.median(row[side][0] for row in rows) for side in (0, 1)]
    ratios = [[row[1][clock] / row[0][clock] for row in rows] for clock in (0, 1)]
    elapsed, used = map(statistics.median, ratios)
    spread = f"({min(ratios[0]):.2f}-{max(ratios[0]):.2f})"
    return (
        f"\r{case:<18}{medians[0]:9.3f}{medians[1]:10.3f}"
        f"{elapsed:9.2f} x {spread:<13}{used:9.2f} x{target:9.2f}"
    )


BACKENDS = ("eager", "dovetail")


def main() -> None:
    if len(sys.argv) == 4 and sys.argv[2] in BACKENDS:
        print(json.dumps(measure(*sys.argv[1:3], int(sys.argv[3]))))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    arguments = parser.parse_args()
    if unknown := set(arguments.cases).difference(CASES):
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    print(f"{'':<18}{'eager s':>9}{'dovetail s':>10}{'elapsed':>15}{'processor':>22}{'target':>9}")
    for case in arguments.cases or CASES:
        print(compare(case, CASES[case], arguments.rounds, arguments.threads), flush=True)


if __name__ == "__main__":
    main()
