"""Writes the wheel ``dovetail-runtime``: what loads and runs files, without what compiles them.

    make -C native && python tools/runtime_wheel.py dist

It holds the C library with its headers, under ``dovetail_runtime/`` as under any prefix, and
those modules of ``dovetail`` that loading needs. They lie in a folder that a ``.pth`` file puts at
the end of ``sys.path``: where the whole of ``dovetail`` is installed too, that one is found first,
neither has files of the other, and either can be uninstalled: docs/decisions/0118.
"""

from __future__ import annotations

import argparse
import ast
import base64
import hashlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = "dovetail_runtime"
PYTHON = f"{NAME}/python/dovetail"
TAGS = "cp311-abi3"
# What loading and calling import, some of it only when a file needs it. What these import in turn
# is found; whatever else functions of them import must be there or be done without.
ROOTS = [
    "dovetail",
    "dovetail.artifact.load",
    "dovetail.ir.size",
    "dovetail.runtime.device",
    "dovetail.runtime.loaded",
    "dovetail.runtime.plugins",
    "dovetail.runtime.trust",
]
OTHERS = ["_native.pyi", "py.typed", "artifact/SPEC.md"]
ENTRY = '''"""The C runtime of dovetail: where its headers and its library are.

To load and run files in Python, ``import dovetail``.
"""

from pathlib import Path

__version__ = "{version}"


def prefix() -> Path:
    """The folder for ``CMAKE_PREFIX_PATH``; ``lib/pkgconfig`` in it is for ``PKG_CONFIG_PATH``."""
    return Path(__file__).resolve().parent
'''
MAIN = '''"""``python -m dovetail_runtime`` prints the folder of the headers and the library."""

from dovetail_runtime import prefix

print(prefix())
'''


def version() -> str:
    """The version of the header, which is the package's too."""
    header = (ROOT / "native" / "include" / "dovetail.h").read_text()
    parts = [
        re.search(rf"#define DVT_VERSION_{part} (\d+)", header)
        for part in ["MAJOR", "MINOR", "PATCH"]
    ]
    return ".".join(part[1] for part in parts if part is not None)


def source_of(module: str) -> Path | None:
    """The file of a module of ours; None: there is none of that name."""
    path = ROOT / "src" / Path(*module.split("."))
    found = [each for each in (path / "__init__.py", path.with_suffix(".py")) if each.exists()]
    return found[0] if found else None


def imported(path: Path) -> set[str]:
    """The modules of ours that importing a file imports, and the packages that they are in."""
    found: set[str] = set()
    for line in ast.parse(path.read_text()).body:  # not what functions import, nor for types alone
        names = []
        if isinstance(line, ast.ImportFrom) and line.module:
            names = [line.module, *(f"{line.module}.{alias.name}" for alias in line.names)]
        elif isinstance(line, ast.Import):
            names = [alias.name for alias in line.names]
        for name in names:
            parts = name.split(".")
            found |= {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return {name for name in found if name.startswith("dovetail.") and source_of(name)}


def modules() -> set[str]:
    """All that the roots import."""
    found, open_ends = set(), set(ROOTS)
    while open_ends:
        name = open_ends.pop()
        found.add(name)
        path = source_of(name)
        inside = {name.rpartition(".")[0]} - {""} if "." in name else set()
        open_ends |= (inside | (imported(path) if path else set())) - found
    return found


def python_files() -> dict[str, bytes]:
    """The modules, and what makes them importable."""
    found = {f"{NAME}.pth": f"{NAME}/python\n".encode()}
    source = ROOT / "src" / "dovetail"
    paths = [source / name for name in OTHERS]
    paths += filter(None, (source_of(name) for name in modules()))
    for path in paths:
        found[f"{PYTHON}/{path.relative_to(source)}"] = path.read_bytes()
    found[f"{NAME}/__init__.py"] = ENTRY.format(version=version()).encode()
    found[f"{NAME}/__main__.py"] = MAIN.encode()
    return found


def library_files(native: Path) -> dict[str, bytes]:
    """What ``make install`` puts below a prefix, less the static library and symbolic links.

    Wheels have no links: for linkers, ``libdovetail.so`` is a script that names the library.
    """
    with tempfile.TemporaryDirectory() as folder:
        install = ["make", "-s", "-C", native, "install", "PREFIX=/p", f"DESTDIR={folder}"]
        subprocess.run(install, check=True)
        prefix = Path(folder) / "p"
        kept = [*prefix.glob("include/*.h"), *prefix.glob("lib/pkgconfig/*")]
        kept += prefix.glob("lib/cmake/dovetail/*")
        found = {f"{NAME}/{path.relative_to(prefix)}": path.read_bytes() for path in kept}
        (library,) = prefix.glob("lib/libdovetail.so.?")
        found[f"{NAME}/lib/{library.name}"] = stripped(library)
        found[f"{NAME}/lib/libdovetail.so"] = f"INPUT({library.name})\n".encode()
    return found


def stripped(path: Path) -> bytes:
    """A binary without symbols for debuggers."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        shutil.copyfile(path, copy)
        subprocess.run(["strip", copy], check=True)
        return copy.read_bytes()


def build_extension() -> bytes:
    """``dovetail._native`` as setup.py builds it."""
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", folder]
        subprocess.run([*build, "--build-temp", folder], cwd=ROOT, check=True)
        (made,) = Path(folder).glob("dovetail/_native*.so")
        return stripped(made)


def metadata(platform: str) -> dict[str, bytes]:
    """The files of ``.dist-info``, less the list of all."""
    about = (
        f"Metadata-Version: 2.4\nName: dovetail-runtime\nVersion: {version()}\n"
        "Summary: Runs dovetail artifacts (.dvt) from Python, C and C++, without PyTorch.\n"
        "License-Expression: Apache-2.0\nLicense-File: LICENSE\nRequires-Python: >=3.11\n"
    )
    wheel = (
        f"Wheel-Version: 1.0\nGenerator: dovetail\nRoot-Is-Purelib: false\nTag: {TAGS}-{platform}\n"
    )
    folder = f"{NAME}-{version()}.dist-info"
    return {
        f"{folder}/METADATA": about.encode(),
        f"{folder}/WHEEL": wheel.encode(),
        f"{folder}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }


def write_wheel(files: dict[str, bytes], to: Path, platform: str) -> Path:
    """The files and their list, in an order and with times that do not vary."""
    record = f"{NAME}-{version()}.dist-info/RECORD"
    lines = []
    for name, data in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    path = to / f"{NAME}-{version()}-{TAGS}-{platform}.whl"
    to.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in [*sorted(files.items()), (record, "".join([*lines, f"{record},,\n"]))]:
            info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            info.external_attr = (0o755 if ".so." in name else 0o644) << 16
            archive.writestr(info, data, zipfile.ZIP_DEFLATED)
    return path


def main() -> None:
    """Build what is not given, and write the wheel."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("to", type=Path, help="the folder that the wheel is written to")
    parser.add_argument("--native", type=Path, default=ROOT / "native", help="where make was run")
    parser.add_argument("--extension", type=Path, help="dovetail._native, if it is built already")
    given = parser.parse_args()
    extension = stripped(given.extension) if given.extension else build_extension()
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    files = {**python_files(), **library_files(given.native), **metadata(platform)}
    files[f"{PYTHON}/_native.abi3.so"] = extension
    print(write_wheel(files, given.to, platform))


if __name__ == "__main__":
    main()
