"""``dovetail compile module:factory -o model.dvt``: a model as one file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dovetail.cli.command import Command, starting_with
from dovetail.cli.factory import (
    FACTORY,
    factory_argument,
    load_factory,
    naming_mistakes_of,
)
from dovetail.cli.modes import mode_option, mode_options
from dovetail.cli.progress import progress
from dovetail.registry import list_backends

if TYPE_CHECKING:
    from dovetail.ir.program import Program

PORTABLE = "portable"


@click.command(
    cls=Command,
    notes=FACTORY,
    examples={
        "dovetail compile model.py:make -o model.dvt": "A file that any machine can run.",
        "dovetail compile model.py:make -o model.dvt --backend cpu": "Generated code for CPUs.",
        "dovetail compile pkg.models:bert -o b.dvt --backend cpu --target x86-64-v3": (
            "Code for processors with AVX2, wherever it is compiled."
        ),
    },
)
@factory_argument
@click.option("-o", "--output", required=True, metavar="FILE", help="The .dvt file to write.")
@click.option(
    "--backend",
    default=PORTABLE,
    show_default=True,
    help="Who compiles it.",
    shell_complete=starting_with(list_backends),
)
@click.option("--plugin", multiple=True, metavar="LIB.SO", help="A plug-in to load first.")
@mode_option
@click.option(
    "--without-torch", is_flag=True, help="Take the runtime's own kernels for what is left."
)
@click.option(
    "--target",
    multiple=True,
    metavar="NAME",
    help="A processor to store code for: x86-64-v3, x86-64-v4-bf16, armv8-a. [default: this one]",
    shell_complete=starting_with(lambda: ["x86-64-v3", "x86-64-v4", "x86-64-v4-bf16", "armv8-a"]),
)
@click.option("--key", metavar="FILE", help="File with a private key to sign with.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing.")
def command(
    factory: str,
    output: str,
    backend: str,
    plugin: Sequence[str],
    mode: str | None,
    without_torch: bool,
    target: Sequence[str],
    key: str | None,
    quiet: bool,
) -> int:
    """Compile a model to one .dvt file."""
    start = time.perf_counter()
    with progress(f"compiling {factory}"):
        program = _compile(factory, output, backend, plugin, mode, without_torch, target, key)
    if not quiet:
        _tell(program, output, time.perf_counter() - start)
    return 0


def _compile(
    factory: str,
    output: str,
    backend: str,
    plugins: Sequence[str],
    mode: str | None,
    without_torch: bool,
    targets: Sequence[str],
    key: str | None,
) -> Program:
    from dovetail.artifact.exported import export
    from dovetail.artifact.save import save
    from dovetail.backends.plugin.backend import load_plugin

    for path in plugins:
        load_plugin(path)
    given = load_factory(factory)
    with naming_mistakes_of(given, factory):
        artifact = export(
            given["model"],
            given.get("args", ()),
            given.get("kwargs"),
            dynamic_shapes=given.get("dynamic_shapes"),
            backend=backend,
            options=mode_options(mode),
        )
    return save(
        artifact.interface,
        artifact.linked,
        output,
        key=key,
        without_torch=without_torch,
        targets=list(targets) or None,
    )


def _tell(program: Program, path: str, seconds: float) -> None:
    from dovetail.file.needs_trust import program_needs_trust, verdict
    from dovetail.ir.memory import plan_memory

    print(f"{path}: {Path(path).stat().st_size:,} bytes in {seconds:.1f} s")
    print(f"  {len(program.instructions)} instructions, {len(program.kernels())} kernels")
    for device in program.devices:
        print(f"  runs on the plug-in {device.name}: {len(program.launches())} kernel calls")
    if program.host_ops():
        print(f"  needs PyTorch for {', '.join(program.host_ops())}")
    print(f"  {verdict(program_needs_trust(program))}")
    if not program.symbols:
        print(f"  {plan_memory(program)}")
