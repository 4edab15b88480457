"""First training step with nothing compiled before: the ``cpu`` backend beside Inductor.

Each in a fresh process with empty caches, interleaved. Seconds from the call to the end of
backward, by the clock and of the processor's time, compilers that were started included; other
programs disturb the latter less. Target: at most 0.18 x Inductor's. BERT is the one of
``transformers`` with random weights where that is installed, else one of the same shape.

    python benchmarks/first_step.py [--rounds N] [--model resnet18|bert|blocks] [--rival NAME]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from typing import Any

from common import THREADS, here, interleaved, spread

MODELS = ("resnet18", "bert")
RIVALS = ("inductor", "cpu")


def make(name: str) -> tuple[Any, tuple[Any, ...]]:
    import torch

    from dovetail.bench import cases

    torch.manual_seed(0)
    if name == "blocks":  # a transformer of 24 blocks
        return cases.Language(causal=True, layers=24), (torch.randint(0, 1000, (2, 64)),)
    if name == "bert":
        return bert()
    return cases.make(name)


def bert() -> tuple[Any, tuple[Any, ...]]:
    """BERT of 12 blocks; narrow, as it is compilation that is measured."""
    import torch

    tokens = torch.randint(0, 1000, (2, 64))
    try:
        from transformers import BertConfig, BertModel
    except ImportError:
        from dovetail.bench.cases import Language

        return Language(causal=False, layers=12), (tokens, torch.ones(2, 64, dtype=torch.bool))
    config = BertConfig(
        hidden_size=256, num_hidden_layers=12, num_attention_heads=4, intermediate_size=1024
    )
    model = BertModel(config)
    return lambda tokens: model(tokens).last_hidden_state, (tokens,)


def processor() -> float:
    """Processor time of this process and of those it has started and seen end."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def measure(name: str, backend: str, folder: str) -> tuple[float, float]:
    os.environ |= {"TORCHINDUCTOR_CACHE_DIR": folder, "DOVETAIL_CACHE_DIR": folder}
    import torch

    torch.set_num_threads(THREADS)
    model, inputs = make(name)
    if hasattr(model, "train"):
        model.train()
    start, used = time.perf_counter(), processor()
    torch.compile(model, backend=backend)(*inputs).float().sum().backward()
    elapsed = time.perf_counter() - start
    if backend == "inductor":
        from torch._inductor.async_compile import shutdown_compile_workers

        shutdown_compile_workers()  # their time is counted once they have ended
    return elapsed, processor() - used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", choices=(*MODELS, "blocks"), action="append")
    parser.add_argument("--rival", action="append", help="a backend; more than once")
    parser.add_argument("variant", nargs="?", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(*arguments.variant.split("+"), folder)))
        return
    for model in arguments.model or MODELS:
        variants = [f"{model}+{rival}" for rival in arguments.rival or RIVALS]
        results = interleaved(here(__file__), variants, arguments.rounds)
        for number, clock in enumerate(("elapsed", "processor")):
            taken = {name: [row[number] for row in rows] for name, rows in results.items()}
            for name, seconds in taken.items():
                pairs = zip(seconds, taken[variants[0]], strict=True)
                ratio = statistics.median(ours / base for ours, base in pairs)
                print(f"{clock:<10} {name:<18} s {spread(seconds)}   {ratio:5.2f} x {variants[0]}")


if __name__ == "__main__":
    main()
