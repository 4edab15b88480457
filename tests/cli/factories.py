"""Factories that the tests of the command line name."""

import torch


class Raises(torch.nn.Module):
    def forward(self, x):
        raise RuntimeError("no such weather")


def raises():
    return Raises(), (torch.ones(2),)
