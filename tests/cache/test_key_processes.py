"""The same model has the same keys in another process, order, folder and under other names."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPERATORS = """
import torch


@torch.library.custom_op("key_models::scale", mutates_args=())
def scale(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by


@scale.register_fake
def _(x, by):
    return torch.empty_like(x)
"""
MODELS = """
import torch
from key_operators import scale
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.feed_forward = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, hidden):
        normed = self.first_norm(hidden)
        attended, _ = self.attention(normed, normed, normed, need_weights=False)
        hidden = hidden + nn.functional.dropout(attended, 0.1, self.training)
        return hidden + self.feed_forward(self.second_norm(hidden))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.batch_norm = nn.BatchNorm2d(8)
        self.register_buffer("offsets", torch.ones(8, 1, 1))

    def forward(self, image):
        features = torch.relu(self.batch_norm(self.stem(image))) + self.offsets
        return features.mean((2, 3)) @ torch.tensor([[1.0]] * 8)


def resized(first, second):
    total = first.shape[0] * second.shape[1]
    return (first @ second).reshape(-1) * total, first.shape[0] + second.shape[1]


def branching(value):
    def positive(inner):
        return inner.sin() + 1

    def negative(inner):
        return inner.cos()

    return torch.cond(value.sum() > 0, positive, negative, (value,))


def checkpointed(value, weight):
    def inner(held):
        return (held @ weight).relu() @ weight

    return checkpoint(inner, value, use_reentrant=False).sum()


def written(buffer, update):
    buffer[1:3] += update
    return buffer.nonzero().float().sum()


CASES = {
    "block": lambda: (nn.Sequential(Block(), Block()), [torch.randn(2, 5, 16)], {}),
    "convolutions": lambda: (Convolutions(), [torch.randn(2, 3, 8, 8)], {}),
    "resized": lambda: (resized, [torch.randn(6, 4), torch.randn(4, 9)], {"dynamic": True}),
    "branching": lambda: (branching, [torch.randn(4)], {}),
    "custom": lambda: (lambda value: scale(value, 2.0) + 1, [torch.randn(4)], {}),
    "checkpointed": lambda: (
        checkpointed, [torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)], {}
    ),
    "written": lambda: (written, [torch.randn(4), torch.ones(2)], {"fullgraph": False}),
}
"""
CASES = ("block", "convolutions", "resized", "branching", "custom", "checkpointed", "written")
RENAMED = (
    *("first_norm", "attention", "feed_forward", "hidden", "normed", "stem", "batch_norm"),
    *("offsets", "image", "features", "first", "second", "total", "value", "weight", "inner"),
    *("held", "buffer", "update", "positive", "negative", "branching", "resized", "Block"),
)


def renamed(text):
    """The models with names of attributes, arguments and functions that sort otherwise."""
    body, _, cases = text.partition("CASES = ")
    for number, name in enumerate(RENAMED):
        new = f"z{len(RENAMED) - number:02}_other"
        body = re.sub(rf"\b{name}\b", new, body)
        cases = re.sub(rf"(?<!\")\b{name}\b", new, cases)
    return f"{body}CASES = {cases}"


def start(folder, text, cases, **environment):
    folder.mkdir()
    path = folder / f"{folder.name}_models.py"
    path.write_text(text)
    (folder / "key_operators.py").write_text(OPERATORS)
    variables = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    command = [sys.executable, "-m", "tests.cache.key_process", str(path), *cases]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.splitlines()[-1])


@pytest.mark.e2e
def test_what_must_not_matter(tmp_path):
    one = start(tmp_path / "one", MODELS, CASES, PYTHONHASHSEED="0", OMP_NUM_THREADS="1")
    environment = {"PYTHONHASHSEED": "4711", "OMP_NUM_THREADS": "2", "DOVETAIL_NUM_THREADS": "2"}
    other = start(tmp_path / "another", renamed(MODELS), CASES[::-1], **environment)
    found, again = read(one), read(other)
    assert found.keys() == again.keys()
    assert {f"{name} dynamo" for name in CASES} <= found.keys()
    assert {"block forward", "block backward", "resized inference"} <= found.keys()
    differing = {
        graph: {name: (part, again[graph].get(name)) for name, part in parts.items()}
        for graph, parts in found.items()
        if parts != again[graph]
    }
    differing = {
        graph: {n: pair for n, pair in parts.items() if pair[0] != pair[1]}
        for graph, parts in differing.items()
    }
    assert differing == {}
    assert [graph for graph, parts in found.items() if "bypass" in parts] == ["custom dynamo"]
