"""What these tests share."""

import pytest

from dovetail.codegen.llvm.target import missing


@pytest.fixture(autouse=True)
def _code_is_generated():
    """What a processor cannot run it cannot test."""
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def _graphs_are_not_verified(monkeypatch):
    """Passes are tested elsewhere; verifying each graph again is a seventh of a compilation."""
    monkeypatch.setenv("DOVETAIL_DEBUG", "0")
