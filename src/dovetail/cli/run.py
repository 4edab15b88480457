"""``dovetail run model.dvt --input x.npy --output y.npy``: one artifact, from files or --random.

Inputs are given in order, one ``--input`` each; outputs are written in order.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from pathlib import Path
from typing import Any

from dovetail.artifact.load import load
from dovetail.cli.numbers import natural, positive
from dovetail.errors import ArtifactNotFound, InvalidInput
from dovetail.file import container
from dovetail.runtime.loaded import Loaded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("file", help="the .dvt file")
    parser.add_argument("--input", action="append", default=[], metavar="X.NPY", help="an input")
    parser.add_argument("--output", action="append", default=[], metavar="Y.NPY", help="where to")
    parser.add_argument(
        "--plugin", action="append", default=[], metavar="LIB.SO", help="a plug-in the file runs on"
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="vouch for the file: what needs a signature runs without",
    )
    parser.add_argument(
        "--max-work", type=float, metavar="STEPS", help="what a call may take (inf: no limit)"
    )
    parser.add_argument(
        "--max-memory", type=float, metavar="BYTES", help="what a call may take (inf: no limit)"
    )
    parser.add_argument("--random", action="store_true", help="random inputs instead of files")
    parser.add_argument(
        "--size", type=natural, default=1, help="dynamic sizes of random inputs (%(default)s)"
    )
    parser.add_argument("--repeat", type=positive, default=10, help="calls to time (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Run, write results, print them in short and the time; exit status 0."""
    if arguments.random and arguments.input:
        raise InvalidInput("give --random or --input files, not both")
    numpy = _numpy()
    _import_torch_if_needed(arguments.file)
    start = time.perf_counter()
    loaded = load(
        arguments.file,
        plugins=arguments.plugin,
        trust=arguments.trust,
        max_work=arguments.max_work,
        max_memory=arguments.max_memory,
    )
    loading = time.perf_counter() - start
    if arguments.random:
        inputs = [_random(numpy, row, arguments.size) for row in loaded.inputs]
    else:
        inputs = [_read(numpy, path) for path in arguments.input]
    start = time.perf_counter()
    outputs = loaded.native(*inputs)
    first = time.perf_counter() - start
    if len(arguments.output) > len(outputs):
        raise InvalidInput(f"{len(arguments.output)} output files, but {len(outputs)} outputs")
    for path, value in zip(arguments.output, outputs, strict=False):
        _write(numpy, path, value)
    for row, value in zip(loaded.native.outputs(), outputs, strict=True):
        print(f"{row[0]}: {_summary(numpy, value, row[3])}")
    print(_times(loaded, inputs, arguments.repeat, loading, first))
    return 0


def _times(loaded: Loaded, inputs: list[Any], repeat: int, loading: float, first: float) -> str:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        loaded.native(*inputs)
        times.append(time.perf_counter() - start)
    return (
        f"load {loading * 1e3:.2f} ms, first call {first * 1e3:.3f} ms, "
        f"then {statistics.median(times) * 1e3:.3f} ms (median of {len(times)})"
    )


def _summary(numpy: Any, output: Any, dims: tuple[int, ...]) -> str:
    """An output in a line: what it is, its first elements, its range, what is not finite."""
    value = numpy.asarray(output)
    if value.dtype.kind not in "biuf":  # numpy has no bfloat16
        return f"shape [{', '.join('?' if n < 0 else str(n) for n in dims)}]"
    text = f"{value.dtype}{list(value.shape)}"
    if not value.size:
        return text
    first = ", ".join(f"{x:.4g}" for x in value.flat[:4])
    text += f" = {first}{', …' if value.size > 4 else ''}"
    if value.dtype.kind != "f":
        return text
    odd = value.size - int(numpy.isfinite(value).sum())
    if odd < value.size and value.size > 4:
        known = value[numpy.isfinite(value)]
        text += f" (from {known.min():.4g} to {known.max():.4g})"
    return text + (f", {odd:,} not finite" if odd else "")


def _numpy() -> Any:
    try:
        return importlib.import_module("numpy")
    except ImportError:
        raise InvalidInput("`dovetail run` reads and writes .npy files: install numpy") from None


def _import_torch_if_needed(path: str) -> None:
    """Host operations need torch in the process; a file without them runs without it."""
    if not Path(path).is_file():
        raise ArtifactNotFound(f"there is no file {path!r}")
    with Path(path).open("rb") as file:
        features = container.read_header(file).features
    if features & (container.FEATURE_HOST | container.FEATURE_BACKENDS):
        try:
            importlib.import_module("torch")
        except ImportError:
            return  # load says what is missing, by name


def _read(numpy: Any, path: str) -> Any:
    try:
        return numpy.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InvalidInput(f"cannot read {path!r}: {error}") from None


def _write(numpy: Any, path: str, value: Any) -> None:
    try:
        with Path(path).open("wb") as file:
            numpy.save(file, numpy.asarray(value))
    except OSError as error:
        raise InvalidInput(f"cannot write {path!r}: {error.strerror}") from None


def _random(numpy: Any, row: tuple[str, int, int, tuple[int, ...]], size: int) -> Any:
    """Normal numbers, small whole numbers, or truth values, by the input's dtype."""
    name, code, bits, dims = row
    shape = tuple(size if n < 0 else n for n in dims)
    rng = numpy.random.default_rng(0)
    if code == 2:
        return rng.normal(size=shape).astype(f"float{bits}")
    if code in (0, 1):
        return rng.integers(0, 2, size=shape).astype(f"{'u' if code else ''}int{bits}")
    if code == 6:
        return rng.integers(0, 2, size=shape).astype(bool)
    raise InvalidInput(f"no random values for input {name!r}: give --input files")
