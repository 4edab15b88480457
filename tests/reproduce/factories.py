"""Models that the tests name at the command line."""

import torch
from torch import nn


class Exponential(nn.Module):
    def forward(self, x):
        return torch.exp(x * 2)


def exponential():
    return Exponential(), (torch.randn(3, 4),)


class Several(nn.Module):
    def forward(self, x, n):
        values, places = x.topk(2)
        torch._dynamo.graph_break()
        a, b = (values * n).split(1, dim=-1)
        return a + b, places.sum(), (x > 0).any()


def several():
    return Several(), (torch.randn(5, 6), 3)
