"""``dovetail run model.dvt --input x.npy --output y.npy``: one artifact, from files or --random.

Inputs are given in order, one ``--input`` each; outputs are written in order.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from dovetail.artifact.load import load
from dovetail.cli.command import Command, refuse
from dovetail.cli.files import write_text
from dovetail.cli.numbers import NATURAL, POSITIVE, Above
from dovetail.cli.progress import progress
from dovetail.errors import ArtifactNotFound, InvalidInput
from dovetail.file import container
from dovetail.runtime.loaded import Loaded


@click.command(
    cls=Command,
    examples={
        "dovetail run model.dvt --random": "Random inputs; prints what came out, and the time.",
        "dovetail run model.dvt --input x.npy --output y.npy": "From and to files of NumPy.",
        "dovetail run model.dvt --random --size 32 --repeat 100": "32 for each dynamic size.",
        "dovetail run model.dvt --random --profile --trace trace.json": (
            "What each kernel took, and a timeline for ui.perfetto.dev."
        ),
    },
)
@click.argument("file", type=click.Path())
@click.option(
    "--input", "inputs", multiple=True, metavar="X.NPY", help="An input; one for each, in order."
)
@click.option(
    "--output", "outputs", multiple=True, metavar="Y.NPY", help="Where to write an output."
)
@click.option("--plugin", multiple=True, metavar="LIB.SO", help="A plug-in the file runs on.")
@click.option(
    "--trust", is_flag=True, help="Vouch for the file: what needs a signature runs without."
)
@click.option(
    "--max-work",
    type=Above("steps"),
    metavar="STEPS",
    help="What a call may take (inf: no limit).",
)
@click.option(
    "--max-memory",
    type=Above("bytes"),
    metavar="BYTES",
    help="What a call may take (inf: no limit).",
)
@click.option("--random", is_flag=True, help="Random inputs instead of files.")
@click.option(
    "--size", type=NATURAL, default=1, show_default=True, help="Dynamic sizes of random inputs."
)
@click.option("--repeat", type=POSITIVE, default=10, show_default=True, help="Calls to time.")
@click.option("--profile", is_flag=True, help="Measure each kernel and print what it took.")
@click.option("--trace", metavar="FILE", help="With --profile: write a trace for ui.perfetto.dev.")
@click.pass_context
def command(
    ctx: click.Context,
    file: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    plugin: Sequence[str],
    trust: bool,
    max_work: float | None,
    max_memory: float | None,
    random: bool,
    size: int,
    repeat: int,
    profile: bool,
    trace: str | None,
) -> int:
    """Run a .dvt FILE, write its outputs, print them in short and the time."""
    if random and inputs:
        refuse(ctx, "give --random or --input files, not both")
    if trace is not None and not profile:
        refuse(ctx, "--trace goes with --profile")
    numpy = _numpy()
    _import_torch_if_needed(file)
    with progress(f"loading {file}") as shown:
        start = time.perf_counter()
        loaded = _on_host(
            load(file, plugins=plugin, trust=trust, max_work=max_work, max_memory=max_memory)
        )
        loading = time.perf_counter() - start
        if profile:
            loaded.native.measure()
        if random:
            given = [_random(numpy, row, size) for row in loaded.inputs]
        else:
            given = [_read(numpy, path) for path in inputs]
        if len(given) != len(loaded.inputs):
            names = ", ".join(row[0] for row in loaded.inputs)
            raise InvalidInput(
                f"the model takes {names}: give --input X.npy for each, in this order, or --random"
            )
        shown.say(f"running {file}")
        start = time.perf_counter()
        results = loaded.native(*given)
        first = time.perf_counter() - start
        if len(outputs) > len(results):
            raise InvalidInput(f"{len(outputs)} output files, but {len(results)} outputs")
        for path, value in zip(outputs, results, strict=False):
            _write(numpy, path, value)
        times = _times(loaded, given, repeat, loading, first)
    for row, value in zip(loaded.native.outputs(), results, strict=True):
        print(f"{row[0]}: {_summary(numpy, value, row[3])}")
    print(times)
    if profile:
        _profile(loaded, [value.shape for value in given], trace)
    return 0


def _on_host(loaded: Any) -> Loaded:
    """What was loaded, if the C runtime runs it."""
    if not isinstance(loaded, Loaded):
        raise InvalidInput(
            "the file is of a model on a GPU, which this command does not run: dovetail.load it"
        )
    return loaded


def _profile(loaded: Loaded, shapes: Sequence[Sequence[int]], trace: str | None) -> None:
    """Print what each kernel took; with ``trace``, write a timeline of the last call."""
    from dovetail.page.file import profiled_report

    report = profiled_report(loaded.native, shapes, _limits())
    rows = report["compilations"][0]["graphs"][0]["segments"][0]["program"]["instructions"]
    if importlib.util.find_spec("rich") is not None:
        from dovetail.cli.terminal import show_profile

        show_profile(rows, report["limits"])
    else:
        for row in sorted(rows, key=lambda row: -(row["measured_seconds"] or 0)):
            print(f"{(row['measured_seconds'] or 0) * 1e6:10.2f} us  {row['kind']} {row['name']}")
    if trace is not None:
        from dovetail.report.trace import trace_json

        write_text(trace, trace_json(report))
        print(f"wrote {trace}")


def _limits() -> dict[str, Any] | None:
    """What the machine does at most; None where torch, which measures it, is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    from dovetail.report.limits import machine_limits

    return machine_limits()


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
