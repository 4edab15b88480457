"""Files of the models of ``dovetail bench`` in processes with PyTorch and without: time of a call.

Each model is frozen, exported and saved twice: as it is, and ``without_torch``. The first file
runs in a process that has PyTorch, the second in one that has not; both stay and take turns. Prints
the time of both and their ratio, and what the first file calls PyTorch for.

    python benchmarks/without_torch.py --threads 2 resnet18 bert
"""

from __future__ import annotations

import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import here, in_turns_parser

LEAST_SECONDS = 0.05  # of a turn


def save(name: str, folder: Path) -> list[str]:
    """Write both files and the inputs; the operators that the first leaves to PyTorch come back."""
    import torch

    import dovetail
    from dovetail.bench.cases import make
    from dovetail.cli.inspect import describe

    model, inputs = make(name)
    with torch.no_grad():
        artifact = dovetail.export(model.eval(), inputs)
    artifact.save(folder / "with.dvt")
    artifact.save(folder / "without.dvt", without_torch=True)
    (folder / "inputs").write_bytes(pickle.dumps([each.numpy() for each in inputs]))
    return list(describe(str(folder / "with.dvt"))["host_ops"])


def serve(which: str, folder: Path) -> None:
    """Answer each line with the milliseconds of a call, the median of a turn's."""
    given: list[Any] = pickle.loads((folder / "inputs").read_bytes())
    if which == "with":
        import torch

        given = [torch.from_numpy(each) for each in given]
    else:
        sys.modules["torch"] = None  # type: ignore[assignment]  # an ImportError for all who want it
    import dovetail

    run = dovetail.load(folder / f"{which}.dvt", trust=True)
    for _ in range(5):
        run(*given)
    for _ in sys.stdin:
        times: list[float] = []
        while sum(times) < LEAST_SECONDS:
            start = time.perf_counter()
            run(*given)
            times.append(time.perf_counter() - start)
        print(json.dumps(statistics.median(times) * 1e3), flush=True)


def start(which: str, folder: Path, threads: int) -> subprocess.Popen[str]:
    """A process that serves one of the files."""
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "DOVETAIL_NUM_THREADS": str(threads)}
    command = [sys.executable, here(__file__), "--serve", which, str(folder)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)


def turn(process: subprocess.Popen[str]) -> float:
    """One process's turn, in milliseconds a call."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return float(json.loads(process.stdout.readline()))


def measure(folder: Path, threads: int, rounds: int) -> dict[str, list[float]]:
    """Every turn of both processes; which of them is first changes from round to round."""
    processes = {which: start(which, folder, threads) for which in ("with", "without")}
    times: dict[str, list[float]] = {which: [] for which in processes}
    for number in range(rounds):
        order = list(processes)[:: 1 if number % 2 else -1]
        for which in order:
            times[which].append(turn(processes[which]))
    for process in processes.values():
        process.communicate()
    return times


def main() -> None:
    from dovetail.bench.cases import MODELS

    parser = in_turns_parser(__doc__ or "")
    parser.add_argument("models", nargs="*", default=[*MODELS])
    parser.add_argument(
        "--keep", type=Path, help="a folder for the files, which are found there later"
    )
    options = parser.parse_args()
    ratios = []
    for name in options.models:
        with tempfile.TemporaryDirectory() as made:
            folder = options.keep / name if options.keep else Path(made)
            folder.mkdir(parents=True, exist_ok=True)
            calls = folder / "calls"  # written last
            if not calls.exists():
                calls.write_text(" ".join(save(name, folder)), encoding="utf-8")
            left = calls.read_text(encoding="utf-8")
            times = measure(folder, options.threads, options.rounds)
        ratios.append(statistics.median(b / a for a, b in zip(*times.values(), strict=True)))
        here_, there = (statistics.median(each) for each in times.values())
        print(f"{name:10} {here_:9.3f} {there:9.3f} ms  {ratios[-1]:5.2f}  {left}", flush=True)
    print(f"geometric mean {statistics.geometric_mean(ratios):.2f}, worst {max(ratios):.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
