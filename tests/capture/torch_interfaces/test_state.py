"""State of the process and thread."""

import threading

import pytest
import torch
from torch._functorch._aot_autograd.utils import register_buffer_assignment_hook
from torch._subclasses import FakeTensorMode

from dovetail.capture._torch.state import (
    autocast_is_on,
    compiler_settings,
    global_state,
    no_buffer_hooks_left,
    no_dispatch_modes,
    unseen_state,
)
from dovetail.capture._torch.upsampling import whole_upsampling


def test_autocast():
    assert not autocast_is_on()
    with torch.autocast("cpu"):
        assert autocast_is_on()


def test_state_that_keys_hold():
    state = global_state()
    assert state["grad mode"] == "True, inference False"
    assert state["autocast"].startswith("off")
    with torch.autocast("cpu"):
        assert global_state()["autocast"].startswith("on for cpu")
    assert "activation_memory_budget" in compiler_settings()
    assert unseen_state() == ""
    with torch.autograd.graph.save_on_cpu():
        assert unseen_state() == "hooks on saved tensors are active"


def test_a_mode_of_our_own_is_not_told():
    with whole_upsampling():
        assert unseen_state() == ""


def test_tensors_are_real_outside_of_dispatch_modes():
    with FakeTensorMode(), no_dispatch_modes():
        assert type(torch.ones(1)) is torch.Tensor


HOOKS = torch.nn.modules.module._global_buffer_registration_hooks


def fail():
    raise ValueError("it fails")


def export(trace):
    """As an export of PyTorch 2.11: its hook stays where tracing fails."""
    hook = register_buffer_assignment_hook(torch.nn.Linear(2, 2), {})
    try:
        trace()
    except ValueError as error:
        raise RuntimeError("no graph") from error
    hook.remove()


def test_hooks_on_buffers_go_where_pytorch_fails():
    own = torch.nn.modules.module.register_module_buffer_registration_hook(lambda *_: None)
    before = dict(HOOKS)
    with pytest.raises(RuntimeError, match="no graph"), no_buffer_hooks_left():
        export(fail)
    assert dict(HOOKS) == before
    own.remove()


def test_hooks_on_buffers_of_another_thread_stay():
    """The other's export begins and ends while this one, which fails, is under way."""
    begun, failed = threading.Event(), threading.Event()
    before, seen = dict(HOOKS), []

    def trace():
        seen.append(dict(HOOKS))
        begun.set()
        assert failed.wait(30)
        seen.append(dict(HOOKS))

    other = threading.Thread(target=export, args=(trace,))

    def fail_meanwhile():
        other.start()
        assert begun.wait(30)
        fail()

    with pytest.raises(RuntimeError, match="no graph"), no_buffer_hooks_left():
        export(fail_meanwhile)
    failed.set()
    other.join()
    at_first, then = seen
    assert len(at_first) == len(before) + 2
    assert len(then) == len(before) + 1
    assert then.items() < at_first.items()
    assert dict(HOOKS) == before
