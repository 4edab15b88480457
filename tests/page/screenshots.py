"""The pictures of docs/explain.md, taken of the page of a small transformer in a real browser.

python -m tests.page.screenshots    write docs/images/explain_*.png
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import dovetail
from dovetail.page.html import page_html
from tests.page.browser import Browser, missing

IMAGES = Path(__file__).parents[2] / "docs" / "images"


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        weights = (q @ k.transpose(-1, -2) * 0.125).softmax(-1)
        x = x + self.out(weights @ v)
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(64), Block(64))
        self.head = nn.Linear(64, 100)

    def forward(self, x):
        return self.head(self.blocks(x)).topk(5)


def report():
    """The data, with files by their names alone."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # times of other threads are those of whatever else the machine does
    with torch.no_grad():
        inputs, profile = torch.randn(4, 16, 64), {"profile": True}
        found = dovetail.explain(Tagger().eval(), inputs, backend="cpu", options=profile)
    text = json.dumps(found.to_dict()).replace(json.dumps(__file__)[1:-1], "tagger.py")
    return json.loads(text)


def take(browser, name, tab, script=""):
    """One picture."""
    browser.find(f"#tab-{tab}").click()
    if script:
        browser.run(script)
    browser.wait_for_frames()
    browser.driver.save_screenshot(str(IMAGES / f"explain_{name}.png"))


def main():
    reason = missing()
    if reason:
        print(reason)
        return 1
    IMAGES.mkdir(exist_ok=True)
    browser = Browser()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(page_html(report(), "tagger.py:make"))
        choose = "dovetail.select(dovetail.view.shown.byName.get('gelu'), true)"
        browser.open(page)
        take(browser, "graph", "graph", choose)
        take(browser, "stages", "stages")
        take(browser, "memory", "memory")
    browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
