"""``dovetail compile module:factory -o model.dvt``: a model as one file."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from dovetail.cli.factory import FACTORY, load_factory

PORTABLE = "portable"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("factory", metavar="MODULE:FACTORY", help=FACTORY)
    parser.add_argument("-o", "--output", required=True, help="the .dvt file to write")
    parser.add_argument("--backend", default=PORTABLE, help="who compiles it (%(default)s)")
    parser.add_argument(
        "--plugin", action="append", default=[], metavar="LIB.SO", help="a plug-in to load first"
    )
    parser.add_argument(
        "--without-torch", action="store_true", help="the runtime's own kernels for what is left"
    )
    parser.add_argument(
        "--target", action="append", metavar="NAME",
        help="a processor to store code for: x86-64-v3, x86-64-v4, armv8-a (this machine's)",
    )  # fmt: skip
    parser.add_argument("--key", help="file with a private key to sign with")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing")


def run(arguments: argparse.Namespace) -> int:
    """Compile and write; exit status 0."""
    from dovetail.artifact.exported import export
    from dovetail.artifact.save import save
    from dovetail.backends.plugin.backend import load_plugin
    from dovetail.ir.memory import plan_memory
    from dovetail.ir.unsigned import program_needs_trust, verdict

    for path in arguments.plugin:
        load_plugin(path)
    start = time.perf_counter()
    given = load_factory(arguments.factory)
    artifact = export(
        given["model"],
        given.get("args", ()),
        given.get("kwargs"),
        dynamic_shapes=given.get("dynamic_shapes"),
        backend=arguments.backend,
    )
    program = save(
        artifact.interface,
        artifact.linked,
        arguments.output,
        key=arguments.key,
        without_torch=arguments.without_torch,
        targets=arguments.target,
    )
    if not arguments.quiet:
        seconds = time.perf_counter() - start
        size = Path(arguments.output).stat().st_size
        print(f"{arguments.output}: {size:,} bytes in {seconds:.1f} s")
        print(f"  {len(program.instructions)} instructions, {len(program.kernels())} kernels")
        for device in program.devices:
            print(f"  runs on the plug-in {device.name}: {len(program.launches())} kernel calls")
        if program.host_ops():
            print(f"  needs PyTorch for {', '.join(program.host_ops())}")
        print(f"  {verdict(program_needs_trust(program))}")
        if not program.symbols:
            print(f"  {plan_memory(program)}")
    return 0
