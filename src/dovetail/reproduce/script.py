"""A graph as a Python script that compiles it, runs it and compares it with eager.

Inputs are random where that fails too; else their values stand in the script, or, where there are
many, in a file of NumPy's beside it. Nothing is pickled: the script is read and run by a person.
"""

from __future__ import annotations

import math
import pprint
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from dovetail.reproduce.check import Failure, Trial

MOST_VALUES = 64  # of an input that is written out
_HEAD = '''"""{what}

Stage: {stage}. {line}
Made by `dovetail reproduce`: PyTorch {torch}, dovetail {dovetail}.
"""

import torch

{more}
def model({names}):
{body}


def inputs():
    torch.manual_seed(0)
    return [
{inputs}
    ]
{trained}

if __name__ == "__main__":
    options = {options}
    compiled = torch.compile(model, backend={backend!r}, options=options)
{compare}
    print("nothing failed")
'''
_COMPARE = """    with torch.no_grad():
        for got, want in zip(compiled(*inputs()), model(*inputs()), strict=True):
            torch.testing.assert_close(got, want)"""
_COMPARE_TRAINING = """    for got, want in zip(trained(compiled), trained(model), strict=True):
        torch.testing.assert_close(got, want)"""
_TRAINED = '''

def trained(function):
    """The results, and the gradients of the inputs that want one."""
    given = inputs()
    torch.manual_seed(0)
    results = list(function(*given))
    reached = [t for t in results if t.requires_grad]
    wanted = [t for t in given if isinstance(t, torch.Tensor) and t.requires_grad]
    if reached and wanted:
        torch.manual_seed(0)
        towards = [torch.randn(t.shape).to(t.dtype) for t in reached]
        results += torch.autograd.grad(reached, wanted, towards, materialize_grads=True)
    return results
'''
_STRIDED = '''
def strided(values, strides):
    """The values, laid out with these strides."""
    return torch.empty_strided(values.shape, strides, dtype=values.dtype).copy_(values)

'''


def render(
    gm: fx.GraphModule,
    values: Sequence[Any],
    failure: Failure,
    trial: Trial,
    *,
    source: Mapping[str, Any] | None,
    random: bool,
    data: Path | None,
) -> str:
    """The script; ``data``: the file that holds what is too long to be written out."""
    from dovetail import __version__

    names = [n.name for n in gm.graph.nodes if n.op == "placeholder"]
    given = [
        "        " + _input(name, value, random) + ","
        for name, value in zip(names, values, strict=True)
    ]
    inputs = "\n".join(given)
    more = _STRIDED if "strided(" in inputs else ""
    if "DATA[" in inputs and data is not None:
        more = f"\nimport numpy\n\nDATA = numpy.load({data.name!r}, allow_pickle=False)\n" + more
    line = f"Line: {source['file']}:{source['line']}: {source['code']}" if source else ""
    return _HEAD.format(
        what=failure.what.replace('"""', "'''").replace("\\", "\\\\"),
        stage=failure.stage,
        line=line.replace('"""', "'''").replace("\\", "\\\\"),
        torch=torch.__version__,
        dovetail=__version__,
        more=more,
        names=", ".join(names),
        body=_body(gm),
        inputs=inputs,
        trained=_TRAINED if trial.train else "",
        options=pprint.pformat({**trial.options, "strict": True}),
        backend=trial.backend,
        compare=_COMPARE_TRAINING if trial.train else _COMPARE,
    )


def random_like(value: Any, generator: torch.Generator) -> Any:
    """A tensor of the same kind with values that the script can draw again."""
    if not isinstance(value, torch.Tensor):
        return value
    made = _drawn(value, generator)
    laid_out = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(made)
    return laid_out.requires_grad_(value.requires_grad)


def _drawn(value: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    if value.dtype.is_floating_point or value.dtype.is_complex:
        return torch.randn(value.shape, dtype=value.dtype, generator=generator)
    if value.dtype == torch.bool:
        return torch.randint(0, 2, value.shape, generator=generator).bool()
    return torch.randint(0, _top(value), value.shape, dtype=value.dtype, generator=generator)


def _top(value: torch.Tensor) -> int:
    """One more than the largest: whole numbers are indices, often."""
    return max(int(value.max()) + 1, 1) if value.numel() else 1


def long_values(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """What is too long to be written out, for a file of NumPy's."""
    return {
        name: _plain(value).numpy()
        for name, value in zip(names, values, strict=True)
        if isinstance(value, torch.Tensor) and value.numel() > MOST_VALUES
    }


def _plain(value: torch.Tensor) -> torch.Tensor:
    """NumPy has no bfloat16; float32 holds every value of it."""
    return value.detach().float() if value.dtype == torch.bfloat16 else value.detach()


def _input(name: str, value: Any, random: bool) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    if random:
        text = _draw_text(value)
    elif value.numel() > MOST_VALUES:
        text = f"torch.from_numpy(DATA[{name!r}]).to({value.dtype})"
    else:
        text = f"torch.tensor({_literal(value.tolist())}, dtype={value.dtype})"
        text += f".reshape({tuple(value.shape)})" if value.numel() == 0 else ""
    if not value.is_contiguous():
        text = f"strided({text}, {tuple(value.stride())})"
    return f"{text}.requires_grad_()" if value.requires_grad else text


def _draw_text(value: torch.Tensor) -> str:
    shape = tuple(value.shape)
    if value.dtype.is_floating_point or value.dtype.is_complex:
        return f"torch.randn({shape}, dtype={value.dtype})"
    if value.dtype == torch.bool:
        return f"torch.randint(0, 2, {shape}).bool()"
    return f"torch.randint(0, {_top(value)}, {shape}, dtype={value.dtype})"


def _literal(values: Any) -> str:
    if isinstance(values, list):
        return f"[{', '.join(map(_literal, values))}]"
    if isinstance(values, float) and not math.isfinite(values):
        return f'float("{values}")'
    return repr(values)


def _body(gm: fx.GraphModule) -> str:
    lines = []
    for node in gm.graph.nodes:
        if node.op == "call_function":
            lines.append(f"    {node.name} = {_called(node)}")
        elif node.op == "output":
            names = ", ".join(out.name for out in node.args[0])
            lines.append(f"    return ({names},)")
    return "\n".join(lines)


def _called(node: fx.Node) -> str:
    args = [_argument(arg) for arg in node.args]
    args += [f"{name}={_argument(arg)}" for name, arg in node.kwargs.items()]
    if node.target.__module__ == "_operator":
        return f"{args[0]}[{args[1]}]"
    return f"torch.ops.{node.target}({', '.join(args)})"


def _argument(arg: Any) -> str:
    if isinstance(arg, fx.Node):
        return str(arg.name)
    if isinstance(arg, list | tuple):
        inner = ", ".join(map(_argument, arg))
        return f"[{inner}]"
    if isinstance(arg, float):
        return _literal(arg)
    if isinstance(arg, torch.device):
        return f"torch.device({str(arg)!r})"
    return repr(arg)
