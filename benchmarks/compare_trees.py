"""Cases of ``dovetail bench`` in two checkouts, in turns: what a change costs or gains.

Each checkout has its own ``.venv`` (``make setup``). Every round measures a case in both, one after
the other, with empty caches; the best of all rounds is kept, as ``dovetail bench`` does. Prints
times of this checkout over those of the other: steady state and cold first call.

    python benchmarks/compare_trees.py OTHER [--rounds N] [--seconds S] [--threads N] [cases ...]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from dovetail.bench import cases
from dovetail.bench.results import Results, geometric_mean, keep_best, ratios_of

HERE = Path(__file__).resolve().parent.parent
FIGURES = (("best", "steady state"), ("first", "cold first call"), ("peak_mb", "memory"))


def measure(tree: Path, case: str, arguments: argparse.Namespace) -> dict[str, float]:
    """One round of one case."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [tree / ".venv/bin/dovetail", "bench", case, "--backends", "dovetail"]
        command += ["--no-warm", "--rounds", "1", "--threads", str(arguments.threads)]
        command += ["--seconds", str(arguments.seconds), "--json", file.name]
        subprocess.run(command, cwd=tree, check=True, stdout=subprocess.DEVNULL)
        found: dict[str, float] = json.loads(Path(file.name).read_text())["results"][case][
            "dovetail"
        ]
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("cases", nargs="*", default=cases.names("all"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    trees = {"other": arguments.other.resolve(), "here": HERE}
    results: Results = {case: {} for case in arguments.cases}
    for case in arguments.cases:
        for turn in range(arguments.rounds):
            for name in sorted(trees, reverse=bool(turn % 2)):
                keep_best(results[case], name, measure(trees[name], case, arguments))
        row = results[case]
        told = (
            f"{ratios_of({case: row}, [case], 'here', 'other', k)[case]:8.3f}" for k, _ in FIGURES
        )
        micros = f"{row['here']['best'] * 1e6:12.1f}{row['other']['best'] * 1e6:12.1f}"
        print(f"{case:<32}{micros}", *told, f"{row['here']['error']:9.1e}", flush=True)
    for key, what in FIGURES:
        ratios = ratios_of(results, arguments.cases, "here", "other", key)
        worst = max(ratios, key=lambda case: ratios[case])
        mean = geometric_mean(list(ratios.values()))
        print(f"{what}: geometric mean {mean:.3f}, worst {ratios[worst]:.3f} ({worst})")


if __name__ == "__main__":
    sys.exit(main())
