"""A small language model, compiled: its speed against eager and Inductor, its page, its file."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dovetail

SECONDS = 4.0  # in which the rivals take turns


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        shape = batch, length, self.heads, width // self.heads
        q, k, v = (t.view(shape).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """Embeddings, blocks, and a softmax over the next letter."""

    def __init__(self, letters: int = 96, width: int = 128, blocks: int = 4) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(64, width)
        self.blocks = nn.Sequential(*[Block(width, 4) for _ in range(blocks)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.letters(text) + self.places.weight[: text.shape[1]]
        return self.head(self.norm(self.blocks(x))).softmax(-1)


def seconds(fn: Callable[[], object]) -> float:
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def take_turns(rivals: Sequence[Callable[[], object]]) -> list[float]:
    """Median milliseconds of each."""
    times, end = [], time.perf_counter() + SECONDS
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 300):
        times.append([seconds(rival) for rival in rivals])
    return [statistics.median(column) * 1e3 for column in zip(*times, strict=True)]


def compile_for(backend: str, model: nn.Module, text: torch.Tensor) -> tuple[Any, float] | None:
    """The model compiled, and the seconds of its first call; None where that fails."""
    compiled = torch.compile(model, backend=backend)
    print(f"  {backend:<10}", end=" ", flush=True)
    try:
        first = seconds(lambda: compiled(text))
    except Exception as error:
        print(f"did not compile: {type(error).__name__}")
        return None
    print(f"first call {first:6.2f} s", flush=True)
    return compiled, first


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # on a machine that does other things, more threads measure those
    model, text = Gpt().eval(), torch.randint(0, 96, (4, 64))
    count = sum(p.numel() for p in model.parameters())
    print(f"a language model of 4 blocks and {count:,} parameters, compiled from empty caches")
    backends = ["dovetail"] + (["inductor"] if shutil.which("g++") else [])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = {name: compile_for(name, model, text) for name in backends}
        runs = {name: found[0] for name, found in compiled.items() if found}
        _show_speed(model, runs, text)
        _show_errors(model, runs, text)
        folder = Path("build")
        folder.mkdir(exist_ok=True)
        _show_page(model, text, folder / "demo.html")
        _show_file(model, text, folder / "demo.dvt")


def _show_speed(model: nn.Module, runs: dict[str, Any], text: torch.Tensor) -> None:
    everyone = {"eager": model, **runs}
    times = take_turns([lambda run=run: run(text) for run in everyone.values()])
    print("then, median of a call on one thread, in turn:")
    for name, took in zip(everyone, times, strict=True):
        print(f"  {name:<10} {took:7.2f} ms   {took / times[0]:.2f} of eager's")


def _show_errors(model: nn.Module, runs: dict[str, Any], text: torch.Tensor) -> None:
    exact = Gpt().double().eval()
    exact.load_state_dict(model.state_dict())
    right = exact(text)
    found = {
        name: (run(text) - right).abs().max() for name, run in {"eager": model, **runs}.items()
    }
    told = ", ".join(f"{name} {error:.1e}" for name, error in found.items())
    print(f"largest difference from float64: {told}")


def _show_page(model: nn.Module, text: torch.Tensor, path: Path) -> None:
    report = dovetail.explain(model, text, options={"profile": True})
    report.to_html(path)
    counts = report.to_dict()["compilations"][0]["graphs"][0]["counts"]
    print(
        f"one run: {counts['kernel']} generated kernels, {counts['library']} library calls, ",
        end="",
    )
    print(f"{counts['host']} host calls; each with its line, code and speed in {path}")


def _show_file(model: nn.Module, text: torch.Tensor, path: Path) -> None:
    dovetail.export(model, (text,), backend="cpu").save(path)
    loading = seconds(lambda: dovetail.load(path)(text))
    size = path.stat().st_size
    print(f"as one file: {path}, {size:,} bytes, loaded and run in {loading * 1e3:.0f} ms")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as caches:
        os.environ["DOVETAIL_CACHE_DIR"] = f"{caches}/dovetail"
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{caches}/inductor"
        main()
