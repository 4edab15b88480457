"""What it saves to compile repeated blocks once: a first training step of 24 transformer blocks.

``cpu`` makes one segment of a graph, and one kernel of all that do the same. Lists that cut graphs
into many segments, here with the device of ``examples/accel_c`` or ``opencl`` before ``cpu``,
compile one segment of all alike. "each" compiles every kernel and every segment for itself. Each
step runs in a fresh process with the cache off, interleaved; seconds are the processor's. "code" is
the part of a step from placed segments to their code.

    python benchmarks/repeated_blocks.py [--rounds N] [--list cpu|accel_c|opencl] [--layers N]
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from common import THREADS, here, interleaved, spread
from first_step import processor

LISTS = ("cpu", "accel_c", "opencl")


def share_nothing() -> None:
    """Compile each kernel and each segment for itself."""
    from dovetail.compilers import segments
    from dovetail.schedule import program

    numbers = itertools.count()

    def salted(data: bytes) -> Any:
        return hashlib.sha256(data + str(next(numbers)).encode())

    program.sha256 = salted  # type: ignore[attr-defined]
    segments.first_of_its_kind = lambda jobs: list(range(len(jobs)))  # type: ignore[attr-defined]


def code_seconds() -> list[float]:
    """Where the time for code of each graph will be noted."""
    from dovetail.compilers import segments

    taken: list[float] = []
    compile_all = segments.SegmentCompiler.compile_all

    def timed(*arguments: Any) -> Any:
        used = processor()
        made = compile_all(*arguments)
        taken.append(processor() - used)
        return made

    segments.SegmentCompiler.compile_all = timed  # type: ignore[method-assign]
    return taken


def backends(name: str, folder: str) -> list[Any]:
    if name == "accel_c":
        from dovetail.backends.plugin.backend import plugin_backend

        source = Path(__file__).parents[1] / "examples" / "accel_c"
        library = Path(folder) / "libaccel_c.so"
        subprocess.run(["make", "-s", "-C", str(source), f"OUTPUT={library}"], check=True)
        return [plugin_backend(library)(), "cpu"]
    return ["cpu"] if name == "cpu" else [name, "cpu"]


def measure(name: str, way: str, layers: int, folder: str) -> dict[str, float]:
    import torch

    from dovetail import history
    from dovetail.bench.cases import Language

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = Language(causal=True, layers=layers)
    tokens = torch.randint(0, 1000, (2, 64))
    options = {"backends": backends(name, folder)}
    if way == "each":
        share_nothing()
    code, used = code_seconds(), processor()
    torch.compile(model, backend="dovetail", options=options)(tokens).sum().backward()
    (record,) = history.recent()
    return {
        "step": processor() - used,
        "code": sum(code),
        "segments": sum(len(graph.segments) for graph in record.graphs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--list", choices=LISTS, action="append")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("variant", nargs="?", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant:
        name, way, layers = arguments.variant.split("+")
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(name, way, int(layers), folder)))
        return
    for name in arguments.list or LISTS:
        variants = [f"{name}+{way}+{arguments.layers}" for way in ("once", "each")]
        results = interleaved(here(__file__), variants, arguments.rounds)
        once, each = (results[variant] for variant in variants)
        for part in ("step", "code"):
            ours, theirs = ([row[part] for row in rows] for rows in (once, each))
            saved = statistics.median(1 - a / b for a, b in zip(ours, theirs, strict=True))
            print(
                f"{name:<8} {part:<5} {once[0]['segments']:4} segments   once s {spread(ours)}"
                f"   each s {spread(theirs)}   saves {saved:5.1%}"
            )


if __name__ == "__main__":
    main()
