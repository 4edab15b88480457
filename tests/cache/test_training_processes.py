"""Odd training steps in one process after another: found in the cache, they do what eager does."""

import json
import math
import re
import subprocess
import sys

import pytest

from tests.cache.training_cases import CASES, SWITCHING
from tests.differential import needs_code

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("training_processes"), needs_code]

# What AOTAutograd refuses where eager does not.
REFUSED = {
    "a_gradient_of_a_gradient": "does not currently support double backward",
    "forward_mode": "You must implement the jvp function",
}
# Products in bfloat16 are kernels on some processors, and rounded once where eager's are twice:
# each time by half of the last of eight bits.
IN_BFLOAT16 = {"autocast_around", "autocast_within"}
# Who stores, who finds, and who has the same code but trains and shares other tensors.
PROCESSES = ("first", "second", "switch")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What each process saw."""
    folder = tmp_path_factory.mktemp("cache")
    return {name: run(name, folder) for name in PROCESSES}


def run(name, folder):
    command = [sys.executable, "-m", "tests.cache.training_cases", "cpu", name]
    environment = {"DOVETAIL_CACHE_DIR": str(folder), "DOVETAIL_CACHE": "1"}
    done = subprocess.run(
        ["env", *(f"{k}={v}" for k, v in environment.items()), *command],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def close(mine, expected, size=0.0, rounding=1e-6):
    """Whether two observations are equal within rounding, and but for what only autograd sees.

    Numbers beside others are sums of about their size: one near zero is as exact as those.
    """
    if isinstance(expected, list):
        size = max(
            (abs(e) for e in expected if isinstance(e, float) and math.isfinite(e)), default=0
        )
        pairs = zip(mine, expected, strict=False)
        alike = (close(m, e, size, rounding) for m, e in pairs)
        return len(mine) == len(expected) and all(alike)
    if isinstance(expected, float):
        both_nan = math.isnan(mine) and math.isnan(expected)
        least = 1e-9 + rounding * size
        return both_nan or math.isclose(mine, expected, rel_tol=rounding, abs_tol=least)
    if isinstance(expected, str):
        if is_number(expected) and is_number(mine):  # a program's own text
            return close(float(mine), float(expected), rounding=rounding)
        return re.sub(" (view|leaf)=.*", "", mine) == re.sub(" (view|leaf)=.*", "", expected)
    return mine == expected


def is_number(text):
    return re.fullmatch(r"-?\d+\.\d+(e[+-]\d+)?", text) is not None


@pytest.mark.parametrize("name", CASES)
def test_as_eager(seen, name):
    check_as_eager(seen["first"][name], name)
    check_as_eager(seen["second"][name], name)


@pytest.mark.parametrize("name", SWITCHING)
def test_as_eager_where_processes_differ(seen, name):
    check_as_eager(seen["switch"][name], name)


def check_as_eager(found, name):
    if name in REFUSED:
        assert REFUSED[name] in found["compiled"]
    else:
        assert not isinstance(found["eager"], str), found["eager"]
        rounding = 2**-7 if name in IN_BFLOAT16 else 1e-6
        seen = found["compiled"], found["eager"]
        assert close(*seen, rounding=rounding), seen


@pytest.mark.parametrize("name", CASES)
def test_found_as_compiled(seen, name):
    first, second = (seen[process][name] for process in ("first", "second"))
    assert second["compiled"] == first["compiled"]
    assert "forward miss" not in second["cache"]
    assert "backward miss" not in second["cache"]


def test_most_are_found_before_autograd(seen):
    """Those that are not have no plan: aliases, effects, writes that autograd follows."""
    left = {name for name, found in seen["second"].items() if "dynamo miss" in found["cache"]}
    assert left == {
        "a_parameter_returned",
        "a_view_of_an_input_written_to_later",
        "a_written_input_that_trains",
        "checkpointed",
        "conditional",
        "detached_and_followed_again",
        "embedding_that_rescales_its_rows",
        "grad_mode_changed_and_left_so",
        "inputs_that_share_memory_and_are_written",
        "no_grad_within",
        "no_result_with_gradient",
        "only_an_input_returned",
        "spectral_norm",
        "views_of_a_result",
        "views_of_an_input",
    }
