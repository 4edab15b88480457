"""When the explain page of 5,000 calls can be used, in headless Chromium, by the clock.

A transformer of small blocks is compiled and explained, so that the page holds what one of a real
model holds: kernels, code, memory, passes. Then the page is opened anew several times. "Drawn" is
the first frame with the graph, "clicked" when a click on a node has shown its details: by then the
page does what is asked of it. Both count from the moment at which the browser is told to open it.

    python benchmarks/page.py [--calls 5000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import dovetail

sys.path.append(str(Path(__file__).parents[1]))  # the browser of the tests

from tests.page.browser import Browser, missing

CALLS_A_BLOCK = 26
LIMIT = 3.0  # seconds; the target of the page


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if missing():
        raise SystemExit(missing())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        start = time.perf_counter()
        report = explain(options.calls)
        graph = report.to_dict()["compilations"][0]["graphs"][0]
        report.to_html(path)
        took, size = time.perf_counter() - start, path.stat().st_size
        print(f"{len(graph['calls']):,} calls, {size / 1e6:.1f} MB, made in {took:.0f} s")
        rounds = [use(path, graph["calls"]) for _ in range(options.rounds)]
    for name, times in zip(("drawn", "clicked", "found"), zip(*rounds, strict=True), strict=True):
        told = f"{statistics.median(times):.2f} s (worst {max(times):.2f})"
        print(f"{name:<8} {told}" + (f"   target {LIMIT:.0f} s" if name != "found" else ""))


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what attention and the MLP say."""
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        x = x + self.out(scores.softmax(-1) @ v)
        return x + self.mlp(self.norm2(x))


def explain(calls: int) -> dovetail.Report:
    """A report of about so many calls."""
    model = nn.Sequential(*[Block(16) for _ in range(calls // CALLS_A_BLOCK)]).eval()
    with torch.no_grad():
        return dovetail.explain(model, torch.randn(2, 8, 16), options={"profile": True})


def use(path: Path, calls: list[dict[str, str]]) -> tuple[float, float, float]:
    """Seconds until the graph is drawn, until a click is answered, and for a search after that."""
    browser = Browser()
    try:
        start = time.perf_counter()
        browser.open(path)
        drawn = time.perf_counter() - start
        first = calls[0]["name"]
        browser.click_node(first)
        assert first in browser.text("#details h2")
        clicked = time.perf_counter() - start
        last = calls[-1]["name"]
        browser.find("#search").send_keys(last)
        assert "found" in browser.text("#found")
        return drawn, clicked, time.perf_counter() - start - clicked
    finally:
        browser.close()


if __name__ == "__main__":
    main()
