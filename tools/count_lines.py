"""Lines of the compiler's middle, now and at an earlier commit: all of them, and those of code.

``lower``, ``schedule``, ``codegen`` and ``ir``. A line of code is one with a token that is neither
comment nor docstring, so that neither blanks nor what explains the code counts.

    python tools/count_lines.py [--files] [--without FOLDER_OR_FILE ...] [COMMIT ...]
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIDDLE = ("ir", "lower", "schedule", "codegen")
_SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}


def lines_of_code(text: str) -> int:
    """How many lines of a file are code."""
    docstrings = _docstrings(ast.parse(text))
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT:
            found |= {*range(token.start[0], token.end[0] + 1)}
    return len(found - docstrings)


def _docstrings(tree: ast.Module) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                if isinstance(first.value.value, str):
                    found |= {*range(first.lineno, (first.end_lineno or first.lineno) + 1)}
    return found


def sources(commit: str, without: list[str]) -> Iterator[tuple[str, str]]:
    """The files of the middle with their texts; ``now`` is the working tree."""
    folders = [f"src/dovetail/{name}" for name in MIDDLE]
    if commit == "now":
        paths = [p.relative_to(ROOT).as_posix() for f in folders for p in (ROOT / f).rglob("*.py")]
    else:
        paths = _git("ls-tree", "-r", "--name-only", commit, *folders).split()
    for path in sorted(paths):
        if path.endswith(".py") and not any(part in path for part in without):
            text = (
                (ROOT / path).read_text() if commit == "now" else _git("show", f"{commit}:{path}")
            )
            yield path, text


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
    ).stdout


def main() -> None:
    """Print a table a commit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commits", nargs="*", default=["now"], help="commits; now: the files here")
    parser.add_argument("--files", action="store_true", help="each file, the largest first")
    parser.add_argument("--without", nargs="*", default=[], metavar="PART", help="parts of paths")
    given = parser.parse_args()
    for commit in given.commits:
        rows = [
            (text.count("\n"), lines_of_code(text), path)
            for path, text in sources(commit, given.without)
        ]
        for folder in MIDDLE:
            own = [row for row in rows if row[2].startswith(f"src/dovetail/{folder}/")]
            _print(commit, f"{folder}, {len(own)} files", own)
        _print(commit, f"all, {len(rows)} files", rows)
        for lines, code, path in sorted(rows, reverse=True) if given.files else ():
            print(f"{lines:6} {code:6}  {path}")


def _print(commit: str, what: str, rows: list[tuple[int, int, str]]) -> None:
    lines, code = (sum(row[n] for row in rows) for n in (0, 1))
    print(f"{commit}: {lines:6} lines, {code:6} of code  {what}")


if __name__ == "__main__":
    main()
