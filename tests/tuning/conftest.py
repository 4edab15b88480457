"""Each test has a cache folder of its own; times count as steady, and few are taken."""

from __future__ import annotations

import math

import pytest

from dovetail import cache
from dovetail.cache import record
from dovetail.tuning import decide, measure


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """What is measured here is kept here."""
    monkeypatch.setenv("DOVETAIL_CACHE", "1")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path / "cache"))
    cache.configure()
    record.reset()
    yield tmp_path / "cache"
    monkeypatch.undo()
    cache.configure()
    record.reset()


@pytest.fixture
def quick(monkeypatch):
    """Few rounds, whose times count whatever else the machine does."""
    monkeypatch.setattr(measure, "SECONDS", (0.0, 0.01))
    monkeypatch.setattr(measure, "ROUNDS", (2, 2))
    monkeypatch.setattr(decide, "UNSTEADY", math.inf)
