"""Factories that the tests of the command line name."""

import sys

import torch


class Raises(torch.nn.Module):
    def forward(self, x):
        raise RuntimeError("no such weather")


def raises():
    return Raises(), (torch.ones(2),)


class WrongShape(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.linear(x)


def wrong_shape():
    return WrongShape(), (torch.ones(1, 3),)


class NeedsTorch(torch.nn.Module):
    def forward(self, x):
        power = torch.linalg.matrix_exp(x)
        return power + torch.special.i0(x)


def needs_torch():
    return NeedsTorch(), (torch.ones(3, 3),)


def exits():
    sys.exit(3)
