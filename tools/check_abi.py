"""Compares dovetail_plugin.h with that of the last release; fails on a change that breaks plug-ins.

What plug-ins were built against must stay as it is: every field of every structure at its offset
and of its type, every constant with its value, the table's functions in their order with their
parameters. Only new names and fields behind the last one may come, and then the minor version of
the interface must be higher. Both headers are compiled: what counts is what the compiler sees.

    python tools/check_abi.py [released header] [new header]
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RELEASED = ROOT / "tests" / "plugin" / "released" / "dovetail_plugin.h"
CURRENT = ROOT / "native" / "include" / "dovetail_plugin.h"
_COMMENT = re.compile(r"/\*.*?\*/", re.S)
_STRUCT = re.compile(r"typedef struct \{(.*?)\n\} (\w+);", re.S)
_NESTED = re.compile(r"(?:struct|union) \{([^{}]*)\} (\w+);", re.S)
_FUNCTION = re.compile(r"^\s*([\w\s*]+?)\(\*(\w+)\)\((.*)\)\s*$", re.S)
_ENUM = re.compile(r"enum \{(.*?)\}", re.S)
_MACRO = re.compile(r"^#define (DVP_\w+)\s+(.+)$", re.M)
_PRIVATE = ("DVP_EXPORT", "DVP_STATIC_ASSERT", "DVP_ABI", "DVP_ABI_MINOR", "DVP_PLUGIN_REQUIRED")


def fields(body: str) -> dict[str, str]:
    """The fields of a structure by name, each with its type; functions with their parameters."""
    found: dict[str, str] = {}
    body = _NESTED.sub(lambda m: f"nested {{{' '.join(m[1].split())}}} {m[2]};", body)
    for part in re.split(r";(?![^{]*\})", body):
        text = " ".join(part.split())
        if not text:
            continue
        if match := _FUNCTION.match(text):
            found[match[2]] = f"{match[1].strip()} ({match[3]})"
        elif text.startswith("nested"):
            found[text.split()[-1]] = text.rsplit(" ", 1)[0]
        else:
            kind, names = re.match(r"((?:const |unsigned )*\w+ )(.*)", text).groups()  # type: ignore[union-attr]
            for name in names.split(","):
                stars, own = re.match(
                    r"((?:[*\s]|const\b)*)(\w+(?:\[\d+\])?)", name.strip()
                ).groups()  # type: ignore[union-attr]
                found[own.split("[")[0]] = f"{kind.strip()} {stars.strip()}{own.partition('[')[2]}"
    return found


class Header:
    """What a header declares, as text, and what a compiler makes of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = _COMMENT.sub(" ", path.read_text())
        self.structs = {name: fields(body) for body, name in _STRUCT.findall(text)}
        names = [
            name
            for body in _ENUM.findall(text)
            for name in re.findall(r"\b(DVP_\w+)\s*(?:=|,|\}|$)", body)
        ]
        macros = [name for name, _ in _MACRO.findall(text) if name not in _PRIVATE]
        self.constants = [*names, *(name for name in macros if "SYMBOL" not in name)]
        self.numbers = self._compile()

    def _compile(self) -> dict[str, int]:
        """Sizes and offsets of structures, and values of constants."""
        asked = [f"sizeof({name})" for name in self.structs]
        asked += [f"offsetof({s}, {f})" for s, all_ in self.structs.items() for f in all_]
        asked += [*self.constants, "DVP_ABI_MINOR", "DVP_PLUGIN_REQUIRED"]
        lines = "\n".join(f'    printf("%s\\t%lld\\n", "{a}", (long long)({a}));' for a in asked)
        source = f'#include "{self.path}"\n#include <stdio.h>\nint main(void)\n{{\n{lines}\n}}\n'
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "layout"
            (Path(folder) / "layout.c").write_text(source)
            subprocess.run(["cc", "-std=c11", "-o", program, f"{program}.c"], check=True)
            told = subprocess.run([program], check=True, capture_output=True, text=True).stdout
        return {
            name: int(value) for name, value in (line.split("\t") for line in told.splitlines())
        }


def problems(old: Header, new: Header) -> list[str]:
    """Every change that breaks a plug-in built against the old header."""
    found = []
    for name, value in old.numbers.items():
        if name.startswith("sizeof") or name == "DVP_ABI_MINOR":
            continue
        if name not in new.numbers:
            found.append(f"{name} is gone")
        elif new.numbers[name] != value:
            found.append(f"{name} was {value} and is {new.numbers[name]}")
    for struct, old_fields in old.structs.items():
        new_fields = new.structs.get(struct, {})
        if new.numbers.get(f"sizeof({struct})", 0) < old.numbers[f"sizeof({struct})"]:
            found.append(f"{struct} became smaller")
        found += [
            f"{struct}.{field} was `{kind}` and is `{new_fields[field]}`"
            for field, kind in old_fields.items()
            if field in new_fields and new_fields[field] != kind
        ]
        if "struct_size" not in old_fields and new_fields and old_fields != new_fields:
            found.append(f"{struct} has no struct_size and may not change")
    grown = new.numbers.keys() - old.numbers.keys()
    if grown and not found and new.numbers["DVP_ABI_MINOR"] <= old.numbers["DVP_ABI_MINOR"]:
        found.append(f"{min(grown)} is new, and DVP_ABI_MINOR is not higher")
    return found


def main(arguments: list[str]) -> int:
    """Say what is incompatible; 1 if anything is."""
    paths = [Path(a).resolve() for a in arguments] or [RELEASED, CURRENT]
    found = problems(*map(Header, paths))
    for each in found:
        print(f"{paths[1].name}: {each}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
