"""Faults of the simulator, one kind after another: a typed error each, no hang, nothing leaked."""

import gc
import os
import threading
import time

import pytest
import torch
from torch import nn

import dovetail
from dovetail import errors

pytestmark = pytest.mark.e2e
FAILED, LOST, MEMORY, TIMEOUT = (
    errors.PluginFailed,
    errors.DeviceLost,
    errors.OutOfMemory,
    errors.DeviceTimeout,
)
# What is broken, at which of its calls, and what the user sees. A negative number: with the loss of
# the device.
FAULTS = [
    ("buffer_alloc", 1, MEMORY),
    ("buffer_alloc", 2, MEMORY),
    ("buffer_alloc", 3, MEMORY),
    ("buffer_alloc", 4, MEMORY),
    ("buffer_alloc", 5, MEMORY),
    ("buffer_alloc", 6, MEMORY),
    ("buffer_alloc", -1, LOST),
    ("buffer_alloc", -5, LOST),
    ("copy_in", 1, FAILED),
    ("copy_in", 4, FAILED),
    ("copy_in", -2, LOST),
    ("copy_out", 1, FAILED),
    ("copy_out", -1, LOST),
    ("stream_sync", 1, FAILED),
    ("stream_sync", 5, FAILED),
    ("stream_sync", -3, LOST),
    ("event_record", 1, FAILED),
    ("event_record", -1, LOST),
    ("event_wait", 1, FAILED),
    ("event_wait", -1, LOST),
    ("find_kernel", 1, FAILED),
    ("find_kernel", 3, FAILED),
    ("find_kernel", -2, LOST),
    ("execute", 1, FAILED),
    ("execute", 3, FAILED),
    ("execute", -2, LOST),
    ("constant_prepare", 1, FAILED),
    ("constant_prepare", -2, LOST),
    ("kernel_fails", 1, FAILED),
    ("kernel_fails", 3, FAILED),
    ("kernel_dies", 2, LOST),
    ("kernel_hangs", 2, TIMEOUT),
    ("copy_fails", 1, FAILED),
    ("copy_dies", 3, LOST),
    ("copy_hangs", 1, TIMEOUT),
]


@pytest.fixture(scope="module")
def model(sim_path):
    """An exported model with constants, run once, so that the cache of compiled code is warm."""
    from tests.plugin.sim import simulator

    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    x = torch.randn(2, 8)
    environment = pytest.MonkeyPatch()
    environment.setenv("DOVETAIL_DEVICE_TIMEOUT", "0.5")
    with simulator(sim_path) as sim, torch.no_grad():
        exported = dovetail.export(layers, (x,), backend=sim.name)
        expected = layers(x)
        exported(x)
        yield sim, exported, x, expected
    environment.undo()


def begin_anew(sim):
    """A device that was just opened: everything is allocated and sent again."""
    gc.collect()
    sim.library.close()
    sim.native.open()


@pytest.mark.parametrize(("where", "at", "error"), FAULTS)
def test_a_fault_is_a_typed_error_and_the_next_call_works(model, where, at, error):
    sim, exported, x, expected = model
    sim.native.set_timeout(0.5)
    begin_anew(sim)
    sim.native.set(f"fault.{where}", at)
    start = time.monotonic()
    with pytest.raises(error, match=r"'accel_sim'") as raised:
        exported(x)
    assert time.monotonic() - start < 30
    if error is FAILED:
        assert type(raised.value) is FAILED
    sim.native.set(f"fault.{where}", 0)
    torch.testing.assert_close(exported(x), expected)
    sim.library.close()  # a leak is a warning, and a warning an error here


@pytest.mark.parametrize(
    ("where", "at"),
    [
        ("device_open", 1),
        ("stream_create", 1),
        ("stream_create", 2),
        ("event_create", 1),
        ("event_create", 2),
    ],
)
def test_a_device_that_does_not_open(model, where, at):
    sim, exported, x, expected = model
    begin_anew(sim)
    sim.native.set(f"fault.{where}", at)
    sim.library.close()
    with pytest.raises(errors.PluginFailed, match="a fault was injected"):
        exported(x)
    torch.testing.assert_close(exported(x), expected)


def test_questions_that_fail(model):
    sim, _, x, _ = model
    sim.native.set("fault.device_get", 1)
    with pytest.raises(errors.PluginFailed, match="injected in device_get"):
        sim.native.get("launched")
    with pytest.raises(errors.PluginFailed, match="no attribute 'nonsense'"):
        sim.native.get("nonsense")
    with pytest.raises(errors.PluginFailed, match="no attribute 'nonsense' to set"):
        sim.native.set("nonsense", 1)
    sim.native.set("fault.query_op", 1)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(torch.relu, backend=sim.name)(x), torch.relu(x))


def test_a_device_that_is_killed_while_nobody_uses_it(model):
    sim, exported, x, expected = model
    begin_anew(sim)
    exported(x)
    os.kill(sim.counted("process"), 9)
    time.sleep(0.05)
    with pytest.raises(errors.DeviceLost, match="signal 9"):
        exported(x)
    torch.testing.assert_close(exported(x), expected)


def test_a_device_that_is_lost_under_several_threads(model):
    """One run finds it; every run that was on it gets an error of its own, and none hangs."""
    sim, exported, x, expected = model
    begin_anew(sim)
    sim.native.set_timeout(20)  # a busy machine is not a lost device
    exported(x)
    sim.native.set("fault.kernel_dies", 20)
    outcomes = []

    def run():
        for _ in range(8):
            try:
                torch.testing.assert_close(exported(x), expected)
                outcomes.append("right")
            except errors.DeviceLost:
                outcomes.append("lost")

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert len(outcomes) == 24
    assert 1 <= outcomes.count("lost") <= 6


def test_two_streams_overlap(model):
    """Two slow kernels of two threads are on the device at once: each has a stream of its own."""
    sim, exported, x, expected = model
    begin_anew(sim)
    sim.native.set_timeout(20)
    exported(x)
    sim.reset()
    for _ in range(1):
        exported(x)
    assert sim.counted("overlap") == 1
    found = []
    barrier = threading.Barrier(2)

    def run():
        barrier.wait()
        found.append(exported(x))

    sim.native.set("slow", 1)
    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sim.native.set("slow", 0)
    torch.testing.assert_close(found, [expected, expected])
    assert sim.counted("overlap") == 2
