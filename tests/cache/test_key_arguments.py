"""Any argument of any call changes a graph's key."""

import random

import pytest
import torch

from dovetail.cache import Bypass
from tests import models
from tests.cache.graphs import capture


def leaves(value, path=()):
    if isinstance(value, tuple | list):
        for position, each in enumerate(value):
            yield from leaves(each, (*path, position))
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from leaves(each, (*path, name))
    else:
        yield path, value


def put(value, path, new):
    if not path:
        return new
    first, *rest = path
    if isinstance(value, dict):
        return {**value, first: put(value[first], rest, new)}
    changed = [put(v, rest, new) if n == first else v for n, v in enumerate(value)]
    return type(value)(changed) if isinstance(value, list) else tuple(changed)


def other(value, node, nodes):
    if isinstance(value, torch.fx.Node):
        return next((n for n in nodes if n is not value and n is not node), None)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    return {None: 7, torch.float32: torch.float64}.get(value, "something else")


def perturbations(gm):
    nodes = list(gm.graph.nodes)
    for position, node in enumerate(nodes):
        held = [(node.args, dict(node.kwargs))]
        for path, value in leaves((node.args, dict(node.kwargs))):
            new = other(value, node, nodes[:position])
            if new is not None:
                node.args, node.kwargs = put(held[0], path, new)
                yield node, path
                node.args, node.kwargs = held[0]


@pytest.mark.parametrize("stage", ["dynamo", "forward", "backward"])
@pytest.mark.parametrize("model", ["gpt", "resnet"])
def test_every_argument_changes_the_key(model, stage):
    torch.manual_seed(0)
    if model == "gpt":
        module, args = models.GPT(layers=1), (torch.arange(16).reshape(2, 8),)
    else:
        module, args = models.ResNet(), (torch.randn(2, 3, 16, 16),)
    (found,) = (c for c in capture(module, *args) if c.stage == stage)
    seen = {found.key().digest: "unchanged"}
    every = sum(1 for _ in perturbations(found.gm))
    chosen = set(random.Random(0).sample(range(every), min(every, 300)))
    for number, (node, path) in enumerate(perturbations(found.gm)):
        if number in chosen:
            key = found.key()
            assert not isinstance(key, Bypass), key.reason
            assert seen.setdefault(key.digest, (node.name, path)) == (node.name, path)
    assert found.key().digest in seen
