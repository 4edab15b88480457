"""What these tests share."""

import pytest


@pytest.fixture(autouse=True)
def _graphs_are_not_verified(monkeypatch):
    """Passes are tested elsewhere; verifying each graph again is a seventh of a compilation."""
    monkeypatch.setenv("DOVETAIL_DEBUG", "0")
