"""Operators that describe their results wrongly, and faults of our own: never a wrong answer."""

import warnings

import pytest
import torch
from torch.nn import functional as F

from dovetail import errors, history
from dovetail.backends.segment_artifact import when_it_writes
from dovetail.capture.ops import resolve_op
from dovetail.ir.call import Ref
from dovetail.ir.program import Buffer, Copy, HostCall, Program
from dovetail.ir.tensor import TensorDesc
from dovetail.lower import all_rules
from tests.differential import needs_code

pytestmark = needs_code


def _define(name, real, fake):
    op = torch.library.custom_op(f"dovetail_tests::{name}", mutates_args=())(real)
    op.register_fake(fake)
    return op


def _other_strides(x: torch.Tensor) -> torch.Tensor:
    return x.t().clone(memory_format=torch.contiguous_format).t()


def _other_dtype(x: torch.Tensor) -> torch.Tensor:
    return x.double()


def _other_shape(x: torch.Tensor) -> torch.Tensor:
    return x[:3].clone()


def _as_given(x):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


LIES = {
    "strides": _define("other_strides", _other_strides, _as_given),
    "dtype": _define("other_dtype", _other_dtype, _as_given),
    "shape": _define("other_shape", _other_shape, _as_given),
}


def _sum_and_window(y):
    return (y * 2).sum(0), y[1:], y[1:].relu()


USES = {
    "pointwise": lambda y: y.relu() + 1,
    "reduction": lambda y: y.sum(0),
    "product": lambda y: y @ y.t(),
    "window": _sum_and_window,
    "transposed": lambda y: (y.t() + 1, y.t()),
}


@pytest.fixture(autouse=True)
def _as_users_have_it(monkeypatch):
    """Neither strict nor in debug mode, which holds every result against its description."""
    monkeypatch.delenv("DOVETAIL_STRICT", raising=False)
    monkeypatch.delenv("DOVETAIL_DEBUG", raising=False)


def _assert_equal(actual, expected):
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("lie", LIES)
def test_results_are_eagers(lie, use):
    def fn(x):
        return USES[use](LIES[lie](x * 2))

    x = torch.randn(5, 7)
    compiled = torch.compile(fn, backend="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.FallbackWarning)
        for _ in range(2):
            _assert_equal(compiled(x), fn(x))


def test_a_wrong_layout_is_no_reason_to_warn():
    compiled = torch.compile(lambda x: LIES["strides"](x).relu(), backend="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error", errors.FallbackWarning)
        compiled(torch.randn(5, 7))


def test_one_warning_and_a_line_in_the_report():
    compiled = torch.compile(lambda x: LIES["dtype"](x).relu(), backend="cpu")
    x = torch.randn(5, 7)
    with pytest.warns(errors.FallbackWarning, match="float64, expected float32"):
        compiled(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", errors.FallbackWarning)
        compiled(x)
    assert any("expected float32" in n for c in history.recent() for n in c.notes)


def test_strict_raises():
    fn = torch.compile(lambda x: LIES["dtype"](x).relu(), backend="cpu", options={"strict": True})
    with pytest.raises(errors.GuardFailed, match="float64, expected float32"):
        fn(torch.randn(5, 7))


# ---- faults of our own --------------------------------------------------------------------------


def _fail(*_args, **_kwargs):
    raise ZeroDivisionError("a fault put here on purpose")


FAULTS = {
    "scheduling": lambda patch: patch.setattr("dovetail.schedule.plan.simplify", _fail),
    "codegen": lambda patch: patch.setattr("dovetail.backends.cpu.program.generate", _fail),
    "loading": lambda patch: patch.setattr("dovetail.runtime.executable.load", _fail),
}


@pytest.mark.parametrize("strict", [False, True])
def test_a_rule_that_fails_leaves_its_call_to_a_library(monkeypatch, caplog, strict):
    changed = {**all_rules(), "cos.default": _fail}
    monkeypatch.setattr("dovetail.lower.calls.all_rules", lambda: changed)
    monkeypatch.setattr("dovetail.lower.calls._KEPT", {})

    def fn(x):
        return x.cos().sum(-1) + 1

    x = torch.randn(4, 9)
    options = {"strict": strict, "cache": False}
    _assert_equal(torch.compile(fn, backend="cpu", options=options)(x), fn(x))
    assert "the rule of aten.cos.default failed" in caplog.text
    assert "on purpose" in caplog.text


@pytest.mark.parametrize("stage", FAULTS)
def test_a_fault_falls_back(stage, monkeypatch):
    FAULTS[stage](monkeypatch)

    def fn(x):
        return x.cos().sum(-1) + 1

    x = torch.randn(4, 9)
    with pytest.warns(errors.FallbackWarning, match="on purpose") as caught:
        _assert_equal(torch.compile(fn, backend="cpu")(x), fn(x))
    assert len([w for w in caught if w.category is errors.FallbackWarning]) == 1
    assert any("on purpose" in n for c in history.recent() for n in c.notes)


@pytest.mark.parametrize("stage", FAULTS)
def test_a_fault_is_raised_in_strict_mode(stage, monkeypatch):
    FAULTS[stage](monkeypatch)
    compiled = torch.compile(lambda x: x.cos() + 1, backend="cpu", options={"strict": True})
    with pytest.raises(errors.BackendFailed, match="on purpose"):
        compiled(torch.randn(4, 9))


# ---- a call that fails half way through a segment -----------------------------------------------

_FAILING = "aten.logcumsumexp.default"  # one that goes through Python


@pytest.fixture
def failing(monkeypatch):
    """One operator of PyTorch's gives another shape than it promises, inside a segment."""

    def resolve(op):
        target = resolve_op(op)
        return (lambda *args: target(*args)[:-1]) if op == _FAILING else target

    monkeypatch.setattr("dovetail.runtime.host.resolve_op", resolve)


def _draws_twice(x, y):
    noise = torch.rand(5, 7)
    return (y + noise).logcumsumexp(0) * torch.rand(5, 7)


def _writes_afterwards(x, y):
    made = y.logcumsumexp(0) + 1
    x.mul_(2)
    return made + x


def _draws_and_writes(x, y):
    x.add_(torch.rand(5, 7))
    return F.dropout(y.logcumsumexp(0), 0.5) + x


@pytest.mark.filterwarnings("ignore::dovetail.errors.FallbackWarning")
@pytest.mark.parametrize("fn", [_draws_twice, _writes_afterwards, _draws_and_writes])
def test_nothing_is_drawn_or_written_twice(fn, failing):
    x, y = torch.randn(5, 7), torch.randn(5, 7)
    written, compiled = x.clone(), torch.compile(fn, backend="cpu")
    for seed in range(2):
        torch.manual_seed(seed)
        expected, after = fn(x, y), torch.rand(3)
        torch.manual_seed(seed)
        _assert_equal(compiled(written, y), expected)
        _assert_equal(written, x)
        _assert_equal(torch.rand(3), after)
    assert any("was promised" in n for c in history.recent() for n in c.notes)


_DESC = TensorDesc("float32", (5,), (1,))
_BUFFERS = tuple(
    Buffer(name, kind, _DESC) for name, kind in [("x", "input"), ("y", "input"), ("z", "host")]
)


def test_when_a_program_writes():
    writes, fails = Copy("x", "y"), HostCall(_FAILING, ("z",), (Ref("y"),), {})
    orders = [((fails,), "never"), ((fails, writes), "last"), ((writes, fails), "early")]
    for order, when in orders:
        assert when_it_writes(Program("p", _BUFFERS, order, ())) == when
