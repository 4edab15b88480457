"""``dovetail new NAME``: a package with a backend of your own, which passes its own tests."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path

import click

from dovetail.cli.command import Command
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


@click.command(
    cls=Command,
    notes="Kinds: " + "; ".join(f"{kind}: {words}" for kind, words in KINDS.items()) + ".",
    examples={
        "dovetail new my_accel": "Kernels in C, in the folder my_accel.",
        "dovetail new my_accel --kind renderer -o backends/my_accel": "A renderer, elsewhere.",
    },
)
@click.argument("name")
@click.option(
    "--kind", type=click.Choice(list(KINDS)), default="c", show_default=True, help="What it is."
)
@click.option("-o", "--output", metavar="FOLDER", help="Where to write. [default: NAME]")
def command(name: str, kind: str, output: str | None) -> int:
    """Write a package with a backend of your own, which installs and passes its own tests.

    NAME is the backend's, such as my_accel.
    """
    folder = Path(output or name)
    name = name.replace("-", "_")  # a package may have a dash, its module may not
    write_package(name, kind, folder)
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
