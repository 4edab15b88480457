"""Write docs/middle.md: one model at every stage of the compiler's middle, from graph to assembly.

python tools/middle.py            write the page
python tools/middle.py --check    exit 1 unless the page is what would be written
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from pathlib import Path

import torch
from torch import nn

from dovetail.ir.target import TARGETS
from dovetail.report.stages import StageText, back, cpu_segments, kernels_of, middle

PAGE = Path(__file__).resolve().parent.parent / "docs" / "middle.md"
TARGET = TARGETS["x86-64-v4"]
OTHERS = ("x86-64-v3", "armv8-a")
SHOWN = 36  # lines of generated code, which is long

HEAD = """\
# The middle of the compiler, stage by stage

What becomes of a small model between PyTorch's graph and machine code. Every block below is
printed by the compiler (`python tools/middle.py` writes this page, and a test keeps it true); for
a model of your own `dovetail explain model.py:make --stages` prints the same.

```python
{source}
```
"""
STAGES = {
    "graph": """\
## Graph

What the `cpu` backend is given: a segment, after passes and placement. Operators are ATen's,
tensors have sizes and strides, and nothing of FX is left. `ir/segment.py`""",
    "layout": """\
## Layout

Where the elements of tensors lie that are not in row-major order: the outermost axis first. Here
that is the weight, whose transposed view the product takes. Around convolutions the layout of each
value is chosen over the segment as a whole, by what it costs (`schedule/layout.py`); a change of
layout is a call, marked `reformat`, and of a frozen weight it runs once. `ir/layout.py`""",
    "lower": """\
## Lower: expressions

Each call becomes values. A value says what its element at d0, d1, … is: a view of another value,
an expression, a reduction of one, or a contraction: a sum of products, with the part that each
dimension plays in it. Rules (`lower/`) decide how an operator is computed and in which types; they
know nothing of loops, memory or machines.""",
    "fuse": """\
## Fuse: kernels

Who computes a contraction (`schedule/cpu/library.py`: this one a kernel, which others are left to a
library, and why), which values share a kernel, which are stored, which are computed again where
they are read (`schedule/cluster.py`, `schedule/plan.py`). A kernel is a parallel iteration space
and the loops at each of its points; memory is addressed by affine expressions. The product, its
bias and gelu are one kernel, layer norm and softmax another: five walks over a row that stays in
the nearest cache. Kernel IR has no target in it, and is what a `.dvt` file carries for machines
that its code is not made for. `ir/kernel.py`""",
    "schedule": """\
## Schedule

How those kernels are done on one target ({target}): the axis of vectors (`*`: the last one of
every loop) and their lanes, what is masked, how sums are kept exact, which functions are called
rather than written out, and what a point costs (ps: picoseconds), of what is worth another thread.
The product's accumulators stay in registers, in tiles of so many rows by so many vectors; columns
that do not lie together are copied to the stack first (`schedule/cpu/product.py`). Strategies in
`schedule/cpu/` make it from the kernel and the target; any other schedule that the verifier
accepts gives the same results. `schedule/schedule.py`""",
    "codegen": """\
## Code

The renderer writes what the schedule says, and decides nothing (`codegen/llvm/render.py`). The
end of the kernel's body, where softmax's last loop scales a row; {count} lines in all:""",
    "assembly": """\
## Assembly

LLVM selects instructions and allocates registers; it optimises nothing else, which is why compiling
takes milliseconds. The same end of the body; {count} lines in all:""",
}


class Model(nn.Module):
    """Linear, gelu, layer norm, softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 256)
        self.norm = nn.LayerNorm(256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One row each."""
        return self.norm(nn.functional.gelu(self.linear(x))).softmax(-1)


EXPORT = 'dovetail.export(Model(), (torch.randn(32, 64),), backend="cpu")'


def source() -> str:
    """The model as a reader would write it."""
    text = re.sub(r"(: torch\.Tensor)|( -> [\w.]+)", "", inspect.getsource(Model))
    text = re.sub(r' *""".*?"""\n+', "", text)
    return f"{text}\n\n{EXPORT}"


def page() -> str:
    """The whole page."""
    *_, segment = cpu_segments(Model(), (torch.randn(32, 64),), TARGET)
    product, kernel = kernels_of(segment, TARGET)
    parts = [HEAD.format(source=source())]
    for stage in middle(segment, TARGET):
        parts += [STAGES[stage.name], _block(stage)]
    schedule, code, assembly = back(kernel, TARGET)
    parts += [STAGES["schedule"].format(target=TARGET.name)]
    parts += [_block(next(iter(back(product, TARGET)))), _block(schedule)]
    for name in OTHERS:
        others = [next(iter(back(each, TARGETS[name]))) for each in (product, kernel)]
        parts += [f"The same kernels on {name}:", *map(_block, others)]
    for stage, end in ((code, "ret void"), (assembly, "retq")):
        count = len(stage.text.splitlines())
        parts += [STAGES[stage.name].format(count=count), _excerpt(stage, kernel.name, end)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _block(stage: StageText) -> str:
    text = stage.text.strip("\n")
    return f"```{stage.language}\n{text}\n```"


def _excerpt(stage: StageText, name: str, end: str) -> str:
    """The last lines of a kernel's body."""
    lines = stage.text.expandtabs(8).splitlines()
    start = next(n for n, line in enumerate(lines) if re.search(rf"{name}\.body[:(]", line))
    last = next(n for n in range(start, len(lines)) if lines[n].strip() == end)
    text = "\n".join(line.rstrip() for line in lines[last + 1 - SHOWN : last + 1])
    return _block(StageText(stage.name, text, stage.language))


def main() -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    made = page()
    if arguments.check:
        same = PAGE.read_text() == made
        print("docs/middle.md is true" if same else "docs/middle.md: run python tools/middle.py")
        return 0 if same else 1
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
