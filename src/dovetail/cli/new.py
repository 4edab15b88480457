"""``dovetail new NAME``: a package with a backend of your own, which passes its own tests."""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from pathlib import Path

from dovetail.errors import InvalidScaffoldName, ScaffoldExists, ScaffoldNameTaken
from dovetail.registry import BUILTIN

KINDS = {
    "c": "kernels in C behind dovetail_plugin.h",
    "python": "kernels as Python functions, to try things out",
    "segment": "a compiler of whole segments",
    "renderer": "kernels rendered from kernel IR",
}
_SHARED = "common"  # what the kinds without C have in common
_TEMPLATES = Path(__file__).parent / "templates"
_HEADER = Path(__file__).parents[1] / "include" / "dovetail_plugin.h"
_NEEDED = frozenset({"torch", "numpy", "pytest", "setuptools"})  # modules a package would hide
_SUFFIX = ".in"  # keeps templates from being taken for code of this package


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("name", help="the backend's name, an identifier such as my_accel")
    kinds = "; ".join(f"{kind}: {words}" for kind, words in KINDS.items())
    parser.add_argument("--kind", choices=KINDS, default="c", help=f"{kinds} (default: c)")
    parser.add_argument("-o", "--output", metavar="FOLDER", help="where to write (default: NAME)")


def run(arguments: argparse.Namespace) -> int:
    """Write the package and say what to do next."""
    folder = Path(arguments.output or arguments.name)
    name = arguments.name.replace("-", "_")  # a package may have a dash, its module may not
    write_package(name, arguments.kind, folder)
    print(f"wrote {folder}; next:\n  pip install -e '{folder}[dev]'\n  pytest {folder}")
    print(f'  torch.compile(model, backend="{name}")')
    return 0


def write_package(name: str, kind: str, folder: Path) -> None:
    """Write a package of this kind into a folder that is new or empty."""
    _check_name(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ScaffoldExists(f"{folder} exists already: choose another with --output")
    for template in (kind,) if kind == "c" else (_SHARED, kind):
        _write_template(_TEMPLATES / template, name, folder)
    if kind == "c":
        (folder / "csrc" / _HEADER.name).write_text(_HEADER.read_text())


def _check_name(name: str) -> None:
    """Raise unless a backend and a module can have this name."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise InvalidScaffoldName(name)
    if name in BUILTIN:
        raise ScaffoldNameTaken(name, "one of dovetail's own backends")
    if name in sys.stdlib_module_names or name in _NEEDED:
        raise ScaffoldNameTaken(name, "a module that it would hide or be hidden by")


def _write_template(template: Path, name: str, folder: Path) -> None:
    for source in sorted(template.rglob(f"*{_SUFFIX}")):
        target = folder / _renamed(str(source.relative_to(template)), name)[: -len(_SUFFIX)]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_renamed(source.read_text(), name))


def _renamed(text: str, name: str) -> str:
    return text.replace("my_accel", name).replace("my-accel", name.replace("_", "-"))
