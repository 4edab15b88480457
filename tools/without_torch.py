"""Write docs/without_torch.md: which of PyTorch's functions a file without PyTorch computes.

python tools/without_torch.py            write the page (minutes)
python tools/without_torch.py --check N  exit 1 unless every Nth row is what would be written

Each function is exported with an example that PyTorch's own tests have for float32, saved
with ``without_torch=True``, loaded and compared with eager.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from textwrap import fill
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves

import dovetail
from dovetail.errors import CannotSave, DovetailError, ExportFailed

PAGE = Path(__file__).resolve().parent.parent / "docs" / "without_torch.md"
RUNS, APART = "runs", "not exported"
_WIDTH = 118  # of the page's text
_LOOKED_AT = 8  # examples of a function, one of which is taken
# No functions of users, and those whose results are whatever lay in memory.
_LEFT_OUT = ("_", "ops.", "jiterator", "empty", "new_empty")
HEAD = """\
# What runs without PyTorch

A file that is saved with `without_torch=True` calls nothing of PyTorch's.
`python tools/without_torch.py` writes this page: it exports each function with an example
that PyTorch {version}'s own tests have for float32, saves, loads and runs it, and compares the
result with eager's; `make test` looks at some of the rows again. A row speaks of one example: what
is computed may depend on arguments and element types.

A model with a function that needs PyTorch is refused by an error that names all operators which
are in the way, with the lines of the model that call them.

{runs} functions run, {others} need PyTorch. {apart} more cannot be exported with their example.
"""


class _Function(torch.nn.Module):
    """A function of an example's tensors; its other arguments are constants."""

    def __init__(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.function, self.args, self.kwargs = function, args, kwargs

    def forward(self, *tensors: torch.Tensor) -> Any:
        given = iter(tensors)

        def filled(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return type(value)(map(filled, value))
            return next(given) if isinstance(value, torch.Tensor) else value

        named = {key: filled(value) for key, value in self.kwargs.items()}
        return self.function(*map(filled, self.args), **named)


def _rank(sample: Any) -> int:
    return max((tensor.dim() for tensor in _tensors([sample.input])), default=0)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def examples() -> dict[str, Any]:
    """Functions by name, those with variants once."""
    found: dict[str, Any] = {}
    for op in op_db:
        if torch.float32 in op.dtypes and not op.name.startswith(_LEFT_OUT):
            found.setdefault(op.name, op)
    return dict(sorted(found.items()))


def outcome(op: Any) -> str:
    """What becomes of a function: it runs, it needs operators, or it cannot be exported."""
    torch.manual_seed(0)
    samples = list(islice(op.sample_inputs("cpu", torch.float32, requires_grad=False), _LOOKED_AT))
    if not samples:
        return APART
    sample = max(samples, key=_rank)  # the first is often a number, which is nobody's case
    args = (sample.input, *sample.args)
    model = _Function(op.op, args, sample.kwargs).eval()
    tensors = tuple(_tensors([*args, *sample.kwargs.values()]))
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        file = Path(folder) / "f.dvt"
        try:
            artifact = dovetail.export(model, tensors)
            artifact.save(file, without_torch=True)
        except CannotSave as error:
            return ", ".join(sorted(set(re.findall(r"\baten\.\w+", str(error))))) or str(error)
        except (ExportFailed, DovetailError):
            return APART
        got = dovetail.load(file, trust=True)(*tensors)
        return RUNS if _alike(got, model(*tensors)) else "nothing: its result differs from eager's"


def _told(name: str, op: Any) -> str:
    try:
        return outcome(op)
    except Exception as error:
        raise RuntimeError(f"{name} as a file") from error


def _alike(got: Any, expected: Any) -> bool:
    pairs = zip(tree_leaves(got), tree_leaves(expected), strict=True)
    return all(
        torch.allclose(torch.as_tensor(a), torch.as_tensor(b), 1e-4, 1e-5, equal_nan=True)
        for a, b in pairs
    )


def page(found: dict[str, str]) -> str:
    """The page, of what became of each function."""
    runs = [name for name, what in found.items() if what == RUNS]
    apart = [name for name, what in found.items() if what == APART]
    others = [(name, what) for name, what in found.items() if what not in (RUNS, APART)]
    version = ".".join(torch.__version__.split(".")[:2])
    head = HEAD.format(version=version, runs=len(runs), others=len(others), apart=len(apart))
    rows = [f"| `{name}` | {what} |" for name, what in others]
    table = ["| function | needs PyTorch for |", "|---|---|", *rows]
    listed = [fill(", ".join(f"`{name}`" for name in names), _WIDTH) for names in (runs, apart)]
    parts = [head, "## Run", "", listed[0], "", "## Need PyTorch", "", *table, ""]
    return "\n".join([*parts, "", "## Not exported", "", listed[1], ""])


def rows_of(text: str) -> dict[str, str]:
    """What a page says of each function."""
    _, _, rest = text.partition("\n## Run\n")
    runs, _, rest = rest.partition("\n## Need PyTorch\n")
    table, _, apart = rest.partition("\n## Not exported\n")
    found = dict(re.findall(r"^\| `(.+?)` \| (.+) \|$", table, re.MULTILINE))
    found |= dict.fromkeys(re.findall(r"`(.+?)`", runs), RUNS)
    return found | dict.fromkeys(re.findall(r"`(.+?)`", apart), APART)


def main() -> int:
    """Write the page, or check some of its rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", type=int, metavar="N", help="look at every Nth row")
    step = parser.parse_args().check
    warnings.simplefilter("ignore")
    ops = list(examples().items())[:: step or 1]
    found = {name: _told(name, op) for name, op in ops}
    if step is None:
        PAGE.write_text(page(found))
        return 0
    written = rows_of(PAGE.read_text())
    wrong = {name: what for name, what in found.items() if written.get(name) != what}
    print(f"run python tools/without_torch.py: {wrong}" if wrong else f"{PAGE.name} is true")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
