"""Every family of rules; ``lower.all_rules`` is what they make together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType

from dovetail.lower.rules import Rule, declared_in

FAMILIES = (
    "attention",
    "binary",
    "convolution",
    "convolution_backward",
    "functions",
    "gradients",
    "group_norm",
    "indexing",
    "norms",
    "pointwise",
    "pooling",
    "pooling_adaptive",
    "pooling_backward",
    "products",
    "reductions",
    "reindex",
    "sampler",
    "scans",
    "scatters",
    "softmax",
)


@cache
def collected() -> Mapping[str, Rule]:
    """The rules of all families, by operator."""
    rules: dict[str, Rule] = {}
    for family in FAMILIES:
        module = import_module(f"dovetail.lower.{family}")
        for name, rule in declared_in(module.__name__):
            if name in rules:
                raise ValueError(f"two rules for {name}")
            rules[name] = rule
    return MappingProxyType(rules)
