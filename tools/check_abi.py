"""Compares C headers with copies of the last release: fails where a program would break.

    python tools/check_abi.py native/abi/dovetail.h native/include/dovetail.h
    python tools/check_abi.py --release native/abi/dovetail.h native/include/dovetail.h

May be added: functions, constants, types, and members at the end of a structure that begins with
``struct_size``; a header with a minor ABI number must raise it then. Anything else (a function or
constant that is gone or different, a member that is gone, moved or of another type) is incompatible
and needs another soname or ABI number. Sizes and places of members are asked of the C compiler
(``CC``), so that a type that changed behind a name counts too. ``--release`` replaces the copies,
when a version is released.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

# Constants that say which version a header is of.
_VERSIONS = re.compile(r"_(MAJOR|MINOR|PATCH|VERSION|VERSION_NUMBER|ABI)$|_VERSION_|_H$")
_GROWS = "struct_size"


@dataclass
class Header:
    """What a header declares: each name with its declaration, without names of parameters."""

    functions: dict[str, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    typedefs: dict[str, str] = field(default_factory=dict)
    structs: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # (member, its text)


def read_header(text: str) -> Header:
    """A header of ours: plain C, one declaration after the other."""
    found = Header()
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S).replace("\\\n", " ")
    for name, value in re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\S[^\n]*)$", text, re.M):
        found.constants[name] = _plain(value)
    text = re.sub(r"^[ \t]*#[^\n]*$", " ", text, flags=re.M)
    text = re.sub(r'extern "C" \{', " ", text)
    text = re.sub(r"_Static_assert\s*\((?:[^()\"]|\([^()]*\)|\"[^\"]*\")*\)\s*;", " ", text)
    for declaration in _declarations(text):
        _read(declaration, found)
    return found


def _declarations(text: str) -> list[str]:
    """The text between semicolons that stand in no braces."""
    made, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}")
        if letter == "}" and depth == 0 and text[start:at].lstrip().startswith("static inline"):
            start = at + 1  # a function that programs bring themselves
        if letter == ";" and depth == 0:
            made.append(_plain(text[start:at]))
            start = at + 1
    return [each for each in made if each]


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _read(text: str, found: Header) -> None:
    text = re.sub(r"\bDV[TP]_API\b ?", "", text)
    if match := re.match(r"(?:typedef )?enum (?:\w+ )?\{(.*)\}", text):
        _read_enum(match[1], found)
    elif match := re.match(r"(?:typedef )?(?:struct|union) ?(\w*) ?\{(.*)\} ?(\w*)$", text):
        found.structs[match[3] or f"struct {match[1]}"] = _members(match[2])
    elif match := re.match(r"typedef (.*\(\*(\w+)\).*)$", text):
        found.typedefs[match[2]] = _without_names(match[1])
    elif match := re.match(r"typedef (.*?)(\w+)$", text):
        found.typedefs[match[2]] = _plain(match[1])
    elif match := re.match(r"(?:extern )?[\w* ]*?(\w+)\((.*)\)$", text):
        if not match[1].isupper():  # a macro: static assertions
            found.functions[match[1]] = _without_names(text)


def _read_enum(text: str, found: Header) -> None:
    value = "-1"
    for part in filter(None, (_plain(part) for part in text.split(","))):
        name, _, given = part.partition("=")
        value = _plain(given) or f"{value} + 1"
        value = str(int(value[:-4]) + 1) if re.fullmatch(r"-?\d+ \+ 1", value) else value
        found.constants[name.strip()] = value


def _members(text: str) -> list[tuple[str, str]]:
    """Each member of a structure: what it is called and how it is declared."""
    made = []
    for declaration in _declarations(text):
        if match := re.search(r"\(\*(\w+)\)", declaration):
            made.append((match[1], _without_names(declaration)))
        elif match := re.match(r"(.*\}) ?(\w+)$", declaration):
            made.append((match[2], declaration))
        else:
            first, *others = declaration.split(", ")
            kind, name = re.fullmatch(r"(.*?)(\**\w+(?:\[\w*\])*)", first).groups()  # type: ignore[union-attr]
            made += [
                (each.lstrip("*").split("[")[0], _plain(f"{kind} {each}"))
                for each in [name, *others]
            ]
    return made


def _without_names(text: str) -> str:
    """A function's declaration without the names of its parameters, which anybody may change."""
    start = text.rindex("(", 0, text.rindex("(") + 1)
    head, inside = text[:start], text[start + 1 : text.rindex(")")]
    kinds = [re.sub(r"(?<=[\w*\]]) ?\b(?!const\b)\w+(\[\w*\])?$", r"\1", part.strip())
             if " " in part.strip() else part.strip() for part in inside.split(",")]  # fmt: skip
    return _plain(f"{head}({', '.join(kinds)})")


def compare(old: Header, new: Header) -> list[str]:
    """What of the old header's is gone or different."""
    found = []
    for what in ("functions", "constants", "typedefs"):
        now = getattr(new, what)
        for name, text in getattr(old, what).items():
            if what == "constants" and _VERSIONS.search(name):
                continue
            if name not in now:
                found.append(f"{name} is gone")
            elif now[name] != text:
                found.append(f"{name} was `{text}` and is `{now[name]}`")
    for name, members in old.structs.items():
        found += _compare_members(name, members, new.structs.get(name))
    return found or _compare_minor(old, new)


def _compare_minor(old: Header, new: Header) -> list[str]:
    """Where a header has a minor ABI number, what is new must come with a higher one."""
    numbers = [name for name in old.constants if name.endswith("_ABI_MINOR")]
    added = [
        name
        for what in ("functions", "constants", "typedefs", "structs")
        for name in getattr(new, what)
        if name not in getattr(old, what)
    ]
    added += [name for name in old.structs if len(new.structs[name]) > len(old.structs[name])]
    return [
        f"{added[0]} is new, and {number} is not higher"
        for number in numbers
        if added and _number(new.constants[number]) <= _number(old.constants[number])
    ]


def _number(text: str) -> int:
    return int(text.rstrip("uUlL"), 0)


def _compare_members(
    name: str, old: list[tuple[str, str]], new: list[tuple[str, str]] | None
) -> list[str]:
    if new is None:
        return [f"{name} is gone"]
    for before, now in zip(old, new, strict=False):
        if before != now:
            return [f"{name}: `{before[1]}` became `{now[1]}`; members are added at the end"]
    if len(new) < len(old):
        return [f"{name}: `{old[len(new)][1]}` is gone"]
    if len(new) > len(old) and old[0][0] != _GROWS:
        return [f"{name} has grown by `{new[len(old)][1]}` and has no {_GROWS} to tell it by"]
    return []


def layout(path: Path, header: Header) -> dict[str, str]:
    """Where each member of each structure lies and how large it is, as the compiler says."""
    lines = [f'#include "{path.resolve()}"', "#include <stdio.h>", "int main(void) {"]
    for name, members in header.structs.items():
        for member, _ in members:
            place = f"__builtin_offsetof({name}, {member}), sizeof((({name} *)0)->{member})"
            lines.append(f'printf("{name}.{member} %zu %zu\\n", {place});')
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "layout.c", Path(folder) / "layout"
        source.write_text("\n".join([*lines, "return 0; }\n"]))
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-std=c11", "-o", program, source], check=True)
        said = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return dict(line.split(" ", 1) for line in said.splitlines())


def check(released: Path, current: Path) -> list[str]:
    """Everything that would break a program built with the released header."""
    old, new = (read_header(path.read_text()) for path in (released, current))
    found = compare(old, new)
    if not found:
        before, now = layout(released, old), layout(current, new)
        found = [
            f"{member} lay at and took {place} bytes, now {now.get(member)}"
            for member, place in before.items()
            if now.get(member) != place
        ]
    return [f"{current}: {each}" for each in found]


def main() -> None:
    """Compare each pair, or replace the copies."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--release", action="store_true", help="replace the released copies")
    parser.add_argument("headers", nargs="+", type=Path, help="released and current, in turns")
    given = parser.parse_args()
    pairs = list(zip(given.headers[::2], given.headers[1::2], strict=True))
    if given.release:
        for released, current in pairs:
            shutil.copyfile(current, released)
        return
    problems = [problem for pair in pairs for problem in check(*pair)]
    for problem in problems:
        print(problem)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
