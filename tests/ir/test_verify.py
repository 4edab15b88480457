"""Verification at every stage under ``debug``."""

from dataclasses import replace

import pytest
import torch

import dovetail
from dovetail.backends.aten import AtenBackend
from dovetail.errors import VerificationFailed
from dovetail.ir import Input, OpCall, Ref, Segment, Size, TensorDesc
from dovetail.ir.segment_verify import InvalidSegment, verify_segment
from dovetail.ir.verify import is_verifying, verify_stage, verifying
from dovetail.schedule import plan as scheduling
from dovetail.schedule.verify import InvalidPlan, verify_plan
from tests.codegen.kernels import plan_of
from tests.differential import needs_code

DESC = TensorDesc("float32", (4,), (1,))


def call(name, *args, output=DESC):
    return OpCall(name, "aten.add.Tensor", args, output=output)


def segment(*calls):
    return Segment("s", (Input("x", DESC),), calls, (Ref("b", DESC),))


GOOD = segment(call("a", Ref("x", DESC)), call("b", Ref("a", DESC)))


def test_a_good_segment():
    assert verify_segment(GOOD) is GOOD


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (segment(call("b", Ref("a", DESC)), call("a", Ref("x", DESC))), "b uses %a before"),
        (segment(call("b", Ref("x", DESC)), call("b", Ref("x", DESC))), "two values are called b"),
        (replace(GOOD, outputs=(Ref("c", DESC),)), "the output uses %c before"),
        (segment(call("b", Ref("x", replace(DESC, dtype="int64")))), "takes %x for i64"),
        (segment(call("b", Ref("x", DESC, (0,)))), "which x does not have"),
        (segment(call("b", Ref("x", DESC), Size.symbol("n"))), "nothing binds"),
        (replace(GOOD, inputs=(Input("x", DESC, "odd"),)), "unknown kind odd"),
    ],
)
def test_a_bad_segment_is_refused(bad, problem):
    with pytest.raises(InvalidSegment, match=problem):
        verify_segment(bad)


def test_a_stage_is_verified_where_that_is_on():
    bad = segment(call("b", Ref("a", DESC)))
    with verifying(False):
        assert verify_stage("place", bad, verify_segment) is bad
    with pytest.raises(VerificationFailed, match="'place' made is not valid: b uses %a"):
        verify_stage("place", bad, verify_segment)


def test_a_plan_out_of_order_is_refused():
    x = torch.randn(64, 64)
    plan = plan_of(lambda x: torch.softmax((x @ x).relu().sum(0), 0) @ x, x)
    assert len(plan.steps) > 2
    verify_plan(plan)
    with pytest.raises(InvalidPlan, match="before"):
        verify_plan(replace(plan, steps=plan.steps[::-1]))
    with pytest.raises(InvalidPlan, match="before"):
        verify_plan(replace(plan, steps=plan.steps[:-1]))


class Asking(AtenBackend):
    """Remembers whether it was to verify what it makes."""

    name = "asking"
    asked = ()

    def compile(self, segment):
        """Compile as aten does."""
        Asking.asked = (*Asking.asked, is_verifying())
        return super().compile(segment)


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("way", ["in-process", "serialize"])
def test_debug_reaches_backends(debug, way, monkeypatch):
    monkeypatch.setattr(Asking, "asked", ())
    options = {"debug": debug, "compile": way, "cache": False}
    with dovetail.registered_backend(Asking):
        torch.compile(torch.sin, backend="asking", options=options)(torch.ones(3))
    assert Asking.asked == (debug,)


def broken(kernel, *_):
    """A step of the scheduler that goes wrong: results that nothing computes."""
    loops = tuple(replace(loop, body=loop.body[-1:]) for loop in kernel.loops)
    return replace(kernel, loops=loops)


@needs_code
def test_a_fault_of_ours_is_told_and_not_run_by_others(monkeypatch):
    monkeypatch.setattr(scheduling, "simplify", broken)
    options = {"debug": True, "strict": False, "cache": False}
    compiled = torch.compile(lambda x: x.sin() + 1, backend="cpu", options=options)
    with pytest.raises(Exception, match=r"'schedule' made is not valid: .* before it is defined"):
        compiled(torch.ones(3))
