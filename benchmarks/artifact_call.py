"""What one call costs beside its kernels: a tiny MLP, Python to Python, in microseconds.

Prints eager, a no-op Dynamo backend, ONNX Runtime where it is installed, the artifact with
generated kernels and with built-in ones, for torch tensors and NumPy arrays; they take turns. Also
the built-in kernels alone (the same program run in a loop inside C would need no Python at all;
here they are timed as the difference between a program of many such layers and one of few).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dovetail
from dovetail.backends.portable import PortableBackend

ROUNDS, CALLS = 9, 2000


def mlp(blocks: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(blocks):
        layers += [nn.Linear(8, 8), nn.ReLU()]
    return nn.Sequential(*layers).eval()


def once(call: Callable[[], Any]) -> float:
    start = time.thread_time()
    for _ in range(CALLS):
        call()
    return (time.thread_time() - start) / CALLS * 1e6


def in_turns(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The median of each, in microseconds of this thread's time; they take turns."""
    for call in calls.values():
        for _ in range(300):
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(once(call))
    return {name: statistics.median(values) for name, values in times.items()}


def onnx_session(model: nn.Module, x: torch.Tensor, folder: Path) -> Any:
    """The model in ONNX Runtime, on one thread; None where it is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    torch.onnx.export(model, (x,), folder / "model.onnx", input_names=["x"], dynamo=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(folder / "model.onnx"), options)


def load(model: nn.Module, x: torch.Tensor, folder: Path, name: str) -> Any:
    dovetail.export(model, (x,), backend=PortableBackend).save(folder / name)
    return dovetail.load(folder / name)


def load_generated(model: nn.Module, x: torch.Tensor, folder: Path) -> Any:
    dovetail.export(model, (x,)).save(folder / "generated.dvt", without_torch=True)
    return dovetail.load(folder / "generated.dvt", trust=True)


def main() -> None:
    torch.set_num_threads(1)
    model, x = mlp(2), torch.randn(1, 8)
    array = x.numpy()
    noop = torch.compile(model, backend=lambda gm, _: gm.forward)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        run = load(model, x, Path(folder), "two.dvt")
        deep = load(mlp(42), x, Path(folder), "many.dvt")
        generated = load_generated(model, x, Path(folder))
        torch.testing.assert_close(run(x), model(x))
        torch.testing.assert_close(generated(x), model(x))
        calls: dict[str, Callable[[], Any]] = {
            "eager": lambda: model(x),
            "no-op Dynamo backend": lambda: noop(x),
            "generated, torch tensors": lambda: generated(x),
            "generated, NumPy arrays": lambda: generated(array),
            "built-in, torch tensors": lambda: run(x),
            "built-in, NumPy arrays": lambda: run(array),
            "forty more blocks": lambda: deep(x),
        }
        session = onnx_session(model, x, Path(folder))
        if session is not None:
            calls["ONNX Runtime"] = lambda: session.run(None, {"x": array})
        rows = in_turns(calls)
    whole = rows["built-in, torch tensors"]
    rows["its kernels alone"] = (rows.pop("forty more blocks") - whole) / 20
    rows["overhead (torch tensors)"] = whole - rows["its kernels alone"]
    print("tiny MLP (2 x Linear 8-8 and ReLU), µs a call, median")
    for name, value in rows.items():
        print(f"  {name:<26}{value:8.2f}")


if __name__ == "__main__":
    main()
