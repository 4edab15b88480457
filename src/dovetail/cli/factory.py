"""``module:factory`` and ``file.py:factory``: how a model is named on the command line.

The factory takes no arguments and returns ``(model, args)``, ``(model, args, kwargs)`` or a dict
of ``dovetail.export``'s arguments (``model``, ``args``, ``kwargs``, ``dynamic_shapes``).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from click.shell_completion import CompletionItem

from dovetail.errors import InvalidFactory

FACTORY = (
    "MODULE:FACTORY names what makes the model: a function of a module (pkg.models:make) or of a "
    "file (model.py:make) that takes no arguments and returns (model, args), (model, args, kwargs) "
    "or a dict with model, args, kwargs, dynamic_shapes. args is the tuple of the model's inputs."
)
_KEYS = ("model", "args", "kwargs", "dynamic_shapes")


def _python_files(_ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Python files and folders; a function's name is the user's to type."""
    folder, _, start = typed.rpartition("/")
    try:
        found = sorted(Path(folder or ".").iterdir())
    except OSError:
        return []
    before = f"{folder}/" if folder else ""
    return [
        CompletionItem(f"{before}{path.name}{'/' if path.is_dir() else ':'}")
        for path in found
        if path.name.startswith(start) and (path.is_dir() or path.suffix == ".py")
    ]


factory_argument = click.argument("factory", metavar="MODULE:FACTORY", shell_complete=_python_files)


def load_factory(text: str) -> dict[str, Any]:
    """What ``module:factory`` returns, as arguments of ``export``."""
    module_name, _, name = text.rpartition(":")
    if not module_name or not name:
        raise InvalidFactory(f"{text!r} is not of the form module:factory or file.py:factory")
    module = _module(module_name)
    factory = getattr(module, name, None)
    if not callable(factory):
        raise InvalidFactory(f"{module_name!r} has no function {name!r}")
    _check_takes_nothing(factory, text)
    try:
        made = factory()
    except (Exception, SystemExit) as error:  # a user's function may raise anything
        raise InvalidFactory(f"{text} failed: {described(error)}") from error
    return as_arguments(made, text)


@contextlib.contextmanager
def naming_mistakes_of(given: Mapping[str, Any], text: str) -> Iterator[None]:
    """What fails within, and in the model by itself too, is told as the model's own mistake.

    A compiler that meets a wrong shape says a great deal of itself and little of the model.
    """
    try:
        yield
    except Exception as error:
        from dovetail.reproduce.eager import eager_error

        own = eager_error(given["model"], given.get("args", ()), given.get("kwargs") or {})
        if own is None:
            raise
        raise InvalidFactory(
            f"the model of {text} fails on its inputs without dovetail, too: {own}"
        ) from error


def _module(name: str) -> ModuleType:
    """A module by its name or its file, found as ``python -m`` and ``python file.py`` find it."""
    path = Path(name)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise InvalidFactory(f"there is no file {name!r}")
    folder = str(path.resolve().parent) if is_file else os.getcwd()  # noqa: PTH109
    sys.path.insert(0, folder)
    try:
        return _file(path) if is_file else importlib.import_module(name)
    except ImportError as error:
        raise InvalidFactory(f"cannot import {name!r}: {error}") from None
    except Exception as error:  # a user's module may raise anything
        raise InvalidFactory(f"cannot import {name!r}: {described(error)}") from error
    finally:
        with contextlib.suppress(ValueError):  # the module may have changed the path itself
            sys.path.remove(folder)


def _file(path: Path) -> ModuleType:
    """The module in a file, under the file's name unless another module has that."""
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_of_factory"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # classes of the file find their module by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _check_takes_nothing(factory: Any, text: str) -> None:
    try:
        needed = [
            p.name
            for p in inspect.signature(factory).parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):  # some built-in functions do not say what they take
        return
    if needed:
        raise InvalidFactory(
            f"{text} needs {', '.join(needed)}, but a factory is called without arguments: write "
            "a function that takes none and returns (model, args)"
        )


def described(error: BaseException) -> str:
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
