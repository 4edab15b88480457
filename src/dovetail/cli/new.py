"""``dovetail new NAME``: a package with a backend of your own, which passes its own tests."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from dovetail.errors import InvalidBackendName, ScaffoldExists

KINDS = {"c": "kernels in C behind dovetail_plugin.h"}
_TEMPLATES = Path(__file__).parent / "templates"
_HEADER = Path(__file__).parents[1] / "include" / "dovetail_plugin.h"
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
    write_package(arguments.name, arguments.kind, folder)
    print(f"wrote {folder}; next:\n  pip install -e '{folder}[dev]'\n  pytest {folder}")
    print(f'  torch.compile(model, backend="{arguments.name}")')
    return 0


def write_package(name: str, kind: str, folder: Path) -> None:
    """Write a package of this kind into a folder that is new or empty."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name == "dovetail":
        raise InvalidBackendName(name)  # it is a module's name too
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ScaffoldExists(f"{folder} exists already: choose another with --output")
    template = _TEMPLATES / kind
    for source in sorted(template.rglob(f"*{_SUFFIX}")):
        target = folder / _renamed(str(source.relative_to(template)), name)[: -len(_SUFFIX)]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_renamed(source.read_text(), name))
    if kind == "c":
        (folder / "csrc" / _HEADER.name).write_text(_HEADER.read_text())


def _renamed(text: str, name: str) -> str:
    return text.replace("my_accel", name).replace("my-accel", name.replace("_", "-"))
