"""Marks of tests that need more than every supported PyTorch has."""

import pytest

from dovetail.capture._torch.precompile import precompile_missing

needs_precompile = pytest.mark.skipif(
    bool(precompile_missing()), reason=precompile_missing() or "there"
)
