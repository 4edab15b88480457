"""First training step of a small MLP and of ResNet-18: compiled in process and in worker processes.

Each in a fresh process, interleaved. "cold" is the first compilation of its process; before "warm"
another model was compiled, so that modules are imported and a worker is there. Seconds of the whole
step, and of code generation alone, which is what the ways differ in.

    python benchmarks/compile_ways.py [--rounds N] [--model mlp|resnet18|bert]
"""

from __future__ import annotations

import argparse
import json
import time

from common import THREADS, here, interleaved, spread

WAYS = ("in-process", "serialize", "subprocess")


def step(model: object, inputs: tuple[object, ...], way: str) -> float:
    import torch

    options = {"compile": way, "cache": False}
    compiled = torch.compile(model, backend="cpu", options=options)
    start = time.perf_counter()
    compiled(*inputs).float().sum().backward()
    return time.perf_counter() - start


def measure(name: str, way: str, state: str) -> dict[str, float]:
    import torch
    from torch import nn

    from dovetail import history
    from dovetail.bench import cases

    torch.set_num_threads(THREADS)
    model, inputs = cases.make(name)
    if state == "warm":
        step(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)), (torch.randn(3, 8),), way)
        history.clear()
    seconds = step(model.train(), inputs, way)
    stages = [stage for each in history.recent() for stage in each.stages]
    return {"seconds": seconds, "codegen": sum(s.ms for s in stages if s.name == "codegen") / 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", choices=("mlp", "resnet18", "bert"), action="append")
    parser.add_argument("variant", nargs="?", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant:
        print(json.dumps(measure(*arguments.variant.split("+"))))
        return
    for model in arguments.model or ("mlp", "resnet18"):
        variants = [f"{model}+{way}+{state}" for state in ("cold", "warm") for way in WAYS]
        results = interleaved(here(__file__), variants, arguments.rounds)
        for variant in variants:
            rows = results[variant]
            step_, codegen = ([row[key] for row in rows] for key in ("seconds", "codegen"))
            print(f"{variant:<26} step s {spread(step_)}   codegen s {spread(codegen)}")


if __name__ == "__main__":
    main()
