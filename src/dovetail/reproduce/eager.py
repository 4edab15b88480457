"""Whether a model fails by itself, when nobody compiles it."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import nn

from dovetail.capture.lines import source_of_frames


def eager_error(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """What a model raises on its inputs, and at which of its lines; None where it runs."""
    if not isinstance(model, nn.Module | FunctionType):
        return None
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    except Exception as error:  # a user's model may raise anything
        line = source_of_frames(traceback.extract_tb(error.__traceback__)[1:])
        where = f", at {line['file']}:{line['line']}: {line['code']}" if line else ""
        return f"{type(error).__name__}: {error}{where}"
    return None
