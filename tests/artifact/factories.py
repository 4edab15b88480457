"""Models for ``dovetail compile`` to find by name."""

import torch
from torch import nn


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), (torch.randn(2, 8),)


def dynamic():
    model, args = mlp()
    return {"model": model, "args": args, "dynamic_shapes": ({0: torch.export.Dim("n", max=9)},)}


def pooled():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2)).eval()
    return model, (torch.randn(1, 1, 8, 8),)


def number():
    return 3


class Breaks(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x


def breaks():
    return Breaks(), (torch.ones(2),)


NOT_CALLABLE = 4


def needs_width(width):
    return torch.nn.Linear(width, width), (torch.ones(1, width),)


class Halves(torch.nn.Module):
    def forward(self, x):
        return x.bfloat16()


def halves():
    return Halves(), (torch.ones(2, 3),)
