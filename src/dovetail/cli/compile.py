"""``dovetail compile module:factory -o model.dvt``: a model as one file.

The factory takes no arguments and returns ``(model, args)``, ``(model, args, kwargs)`` or a dict
of ``dovetail.export``'s arguments (``model``, ``args``, ``kwargs``, ``dynamic_shapes``).
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.errors import InvalidFactory

_KEYS = ("model", "args", "kwargs", "dynamic_shapes")
PORTABLE = "portable"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("factory", metavar="MODULE:FACTORY", help="what makes the model")
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


def load_factory(text: str) -> dict[str, Any]:
    """What ``module:factory`` returns, as arguments of ``export``."""
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise InvalidFactory(f"{text!r} is not of the form module:factory")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109  # as `python -m` does
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InvalidFactory(f"cannot import {module_name!r}: {error}") from None
    except Exception as error:  # a user's module may raise anything
        raise InvalidFactory(f"cannot import {module_name!r}: {described(error)}") from error
    finally:
        sys.path.pop(0)
    factory = getattr(module, name, None)
    if not callable(factory):
        raise InvalidFactory(f"{module_name!r} has no function {name!r}")
    try:
        made = factory()
    except Exception as error:  # as above
        raise InvalidFactory(f"{text} failed: {described(error)}") from error
    return as_arguments(made, text)


def described(error: Exception) -> str:
    """What a user's code raised, and where."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError):  # says itself where it is
        where = ""
    return f"{type(error).__name__}: {error}{where}"


def as_arguments(made: Any, text: str) -> dict[str, Any]:
    """A factory's result by name."""
    if isinstance(made, tuple) and 2 <= len(made) <= 3:
        made = dict(zip(_KEYS, made, strict=False))
    if not isinstance(made, dict) or "model" not in made or not set(made) <= set(_KEYS):
        raise InvalidFactory(
            f"{text} returned a {type(made).__name__}; return (model, args), "
            f"(model, args, kwargs) or a dict with {', '.join(_KEYS)}"
        )
    if not isinstance(made.get("args", ()), tuple | list):
        raise InvalidFactory(f"{text} returned args that are no tuple: return (model, (x,))")
    if not isinstance(made.get("kwargs") or {}, Mapping):
        raise InvalidFactory(f"{text} returned kwargs that are no dict")
    return made
