"""Every kernel that a corpus of graphs becomes, as text: what a refactoring must leave alone.

``capture`` writes segments to a file: the kernels and models of ``dovetail bench``, the programs
of ``benchmarks/codegen_cases.py`` and samples of PyTorch's op_db, forward and backward, some with
symbolic sizes. ``dump`` plans each and prints the kernels, so that two versions of the compiler
can be compared with ``diff``. ``time`` prints the processor seconds that planning takes.

    python tools/kernel_texts.py capture corpus.zip [--only bench|programs|op_db]
    python tools/kernel_texts.py dump corpus.zip > kernels.txt
    python tools/kernel_texts.py time corpus.zip [--only NAME] [--rounds N]
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
SAMPLES = {"float32": 6, "bfloat16": 1, "int64": 2, "bool": 1, "float64": 1}
Case = tuple[str, Any, tuple[Any, ...], bool, bool]  # name, function, inputs, backward, dynamic


def segments_of(fn: Any, inputs: tuple[Any, ...], *, backward: bool, dynamic: bool) -> list[Any]:
    """The graphs of a function as the cpu backend is given them, each as one segment."""
    import torch
    from torch._functorch.aot_autograd import aot_function
    from torch.utils import _pytree as pytree

    from dovetail import registry
    from dovetail.capture.decompose import keeping_claimed
    from dovetail.capture.from_fx import segment_of

    owner = registry.get_backend("cpu")
    found: list[Any] = []
    if isinstance(fn, torch.nn.Module):
        module, fn = fn, torch.func.functional_call
        inputs = (module, dict(module.named_parameters()) | dict(module.named_buffers()), inputs)

    def compiler(gm: Any, _: Any) -> Any:
        found.append(segment_of(gm, "corpus"))
        return gm

    leaves, spec = pytree.tree_flatten(inputs)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def flat(*given: Any) -> Any:
        rest = iter(given)
        full = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        return fn(*pytree.tree_unflatten(full, spec))

    table = keeping_claimed([(owner.decompositions(), owner.keeps_whole)])
    with torch.set_grad_enabled(backward):
        if backward:
            tensors = [x.detach().requires_grad_(x.is_floating_point()) for x in tensors]
        whole = aot_function(flat, compiler, compiler, decompositions=table, dynamic=dynamic)
        result = whole(*tensors)
        if backward:
            leaves = [x for x in pytree.tree_leaves(result) if getattr(x, "requires_grad", False)]
            sum(x.float().sum() for x in leaves).backward()
    return found


def bench() -> Iterator[Case]:
    """The kernels and models of ``dovetail bench``."""
    from dovetail.bench import cases

    for name in cases.names("all"):
        fn, inputs = cases.make(name)
        yield f"bench {name}", fn, inputs, False, False
        yield f"bench {name} backward", fn, inputs, True, False
        yield f"bench {name} dynamic", fn, inputs, False, True


def programs() -> Iterator[Case]:
    """Programs that make large kernels."""
    sys.path.insert(0, str(BENCHMARKS))
    import codegen_cases

    for name, fn, inputs, backward in codegen_cases.programs():
        yield f"program {name}", fn, inputs, False, False
        if "float32" in name:
            yield f"program {name} dynamic", fn, inputs, False, True
        if backward:
            yield f"program {name} backward", fn, inputs, True, False


def op_db() -> Iterator[Case]:
    """Samples of every operator that PyTorch tests itself with."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db as operators

    for op in operators:
        for dtype, count in SAMPLES.items():
            kind = getattr(torch, dtype)
            if kind not in op.supported_dtypes("cpu") or "jiterator" in op.name:
                continue
            for n, sample in zip(range(count), op.sample_inputs("cpu", kind), strict=False):

                def fn(first: Any, args: Any, kwargs: Any, op: Any = op) -> Any:
                    return op.op(first, *args, **kwargs)

                given = (sample.input, sample.args, sample.kwargs)
                name = f"op_db {op.formatted_name} {dtype} {n}"
                yield name, fn, given, False, False
                if dtype == "float32" and n < 2:
                    yield f"{name} dynamic", fn, given, False, True
                    if op.supports_autograd:
                        yield f"{name} backward", fn, given, True, False


GROUPS = {"bench": bench, "programs": programs, "op_db": op_db}


def capture(path: str, only: str) -> None:
    """Write the segments of every case."""
    import torch

    from dovetail.ir.encode import segment_to_bytes

    warnings.simplefilter("ignore")
    found: dict[str, bytes] = {}
    for group, cases in GROUPS.items():
        for name, fn, inputs, backward, dynamic in cases() if only in group else ():
            try:
                torch.manual_seed(0)
                made = segments_of(fn, inputs, backward=backward, dynamic=dynamic)
                for n, segment in enumerate(made):
                    found[f"{name} #{n}"] = segment_to_bytes(segment)
            except Exception as error:  # what cannot be captured has no kernels
                print(f"{name}: {type(error).__name__}", file=sys.stderr)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as corpus:
        for name, data in found.items():
            corpus.writestr(name, data)
    print(f"{len(found)} segments")


def load(path: str, only: str) -> dict[str, Any]:
    """Segments by name."""
    from dovetail.ir.encode import segment_from_bytes

    with zipfile.ZipFile(path) as corpus:
        names = [name for name in corpus.namelist() if only in name]
        return {name: segment_from_bytes(corpus.read(name)) for name in names}


def text_of(segment: Any) -> str:
    """Every step of a segment's plan."""
    from dovetail.ir.kernel_text import print_kernel
    from dovetail.ir.target import TARGETS
    from dovetail.schedule.build import Built
    from dovetail.schedule.plan import make_plan

    lines = []
    try:
        steps = make_plan(segment, TARGETS["x86-64-v4"]).steps
    except Exception as error:  # as it stands, so that it shows in a comparison
        return f"{type(error).__name__}: {error}"
    for step in steps:
        if isinstance(step, Built):
            lines.append(print_kernel(step.kernel))
            for name, v in step.buffers.items():
                lines.append(f"{name}: {v.dtype}{list(v.shape)} {list(v.strides)}")
        else:
            lines.append(str(step.call))
    return "\n".join(lines)


def measure(segments: dict[str, Any], rounds: int) -> None:
    """Print the least processor seconds that planning every segment took."""
    from dovetail.ir.target import TARGETS
    from dovetail.schedule.plan import make_plan

    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        for segment in segments.values():
            try:
                make_plan(segment, TARGETS["x86-64-v4"])
            except Exception:  # measured as far as it goes
                continue
        best = min(best, time.process_time() - start)
    print(f"{best:.4f}")


def main() -> None:
    """Capture, dump or time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("capture", "dump", "time"))
    parser.add_argument("file")
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if args.action == "capture":
        capture(args.file, args.only)
        return
    segments = load(args.file, args.only)
    if args.action == "time":
        measure(segments, args.rounds)
        return
    for name, segment in segments.items():
        print(f"==== {name}\n{text_of(segment)}")


if __name__ == "__main__":
    main()
