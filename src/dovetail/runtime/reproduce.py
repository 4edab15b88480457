"""A script that runs one call on a backend and on PyTorch, with the tensors it was wrong on.

Tensors lie beside it as plain bytes; reading them runs no code.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dovetail.backend import Backend
from dovetail.ir import Arg, Attr, OpCall, Real, Ref, Size

_SCRIPT = '''\
"""{op} on the backend {backend!r}: {found}."""

from pathlib import Path

import torch

import dovetail

{register}

def read(name, dtype, shape, strides):
    """A tensor with the layout it had."""
    data = bytearray((Path(__file__).parent / name).read_bytes())
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.as_strided(shape, strides)


def run({parameters}):
    return torch.ops.{op}({arguments})


inputs = [
{inputs}]
expected = run(*inputs)
found = torch.compile(run, backend={backend!r})(*inputs)
print("found:", found)
print("expected:", expected)
torch.testing.assert_close(found, expected)
'''


def write_script(
    folder: Path, call: OpCall, values: Mapping[Any, Any], backend: Backend, found: str
) -> Path:
    """Write the script and its tensors into a folder; its path comes back.

    ``values`` has what each of the call's references stands for.
    """
    names = {(ref.name, ref.path): f"input_{n}" for n, ref in enumerate(_unique(call))}
    reads = []
    for key, name in names.items():
        reads.append(f"    {_store(folder, name, values[key])},\n")
    arguments = [_written(arg, names, values) for arg in call.args]
    arguments += [f"{key}={_written(arg, names, values)}" for key, arg in call.kwargs.items()]
    path = folder / "reproduce.py"
    path.write_text(
        _SCRIPT.format(
            op=call.op,
            backend=backend.name,
            found=found,
            register=_registration(backend),
            parameters=", ".join(names.values()),
            arguments=", ".join(arguments),
            inputs="".join(reads),
        )
    )
    return path


def _unique(call: OpCall) -> list[Ref]:
    return list({(ref.name, ref.path): ref for ref in call.refs()}.values())


def _store(folder: Path, name: str, value: Any) -> str:
    """How the script gets a value; a tensor's memory is written, gaps included."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    size = 0
    if value.numel():
        size = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    flat = value.detach().as_strided((size,), (1,)).contiguous()
    (folder / f"{name}.bin").write_bytes(bytes(flat.view(torch.uint8).tolist()) if size else b"")
    return f"read('{name}.bin', {value.dtype}, {tuple(value.shape)}, {value.stride()})"


def _written(arg: Arg, names: Mapping[Any, str], values: Mapping[Any, Any]) -> str:
    """An argument as Python text."""
    if isinstance(arg, Ref):
        return names[arg.name, arg.path]
    if isinstance(arg, Attr):
        return f"torch.device({arg.value!r})" if arg.kind == "device" else f"torch.{arg.value}"
    if isinstance(arg, Size | Real):
        return str(arg.evaluate({name: values[name, ()] for name in arg.symbols()}))
    if isinstance(arg, tuple):
        return f"[{', '.join(_written(a, names, values) for a in arg)}]"
    if isinstance(arg, float):
        return f"float({str(arg)!r})"  # also for infinities and NaN
    return repr(arg)


def _path_of(module: str) -> str:
    """Where a module is, for a process that was started elsewhere."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return ""
    above = module.count(".") + (Path(file).name == "__init__.py")
    return f"import sys\n\nsys.path.insert(0, {str(Path(file).resolve().parents[above])!r})\n"


def _registration(backend: Backend) -> str:
    """How the script gets the backend, where its name alone does not."""
    cls = type(backend)
    if cls.made_by is not None and "path" in cls.made_by[1]:
        given = cls.made_by[1]
        device = f", device={given['device']}" if given.get("device") else ""
        return f"dovetail.load_plugin({given['path']!r}, name={given['name']!r}{device})\n"
    if cls.__module__.startswith("dovetail."):
        return ""
    if cls.__module__ == "__main__":
        return f"# Register {cls.__qualname__} here: it was defined in a script or a notebook.\n"
    return (
        f"{_path_of(cls.__module__)}from {cls.__module__} import {cls.__qualname__}\n\n"
        f"if {backend.name!r} not in dovetail.list_backends():\n"
        f"    dovetail.register_backend({cls.__qualname__})\n"
    )
