"""Streams, events and tensors of a device from Python: files on the simulator, which counts."""

import gc
import threading

import numpy as np
import pytest
import torch

import dovetail
from dovetail import errors
from tests.artifact.files import file_bytes
from tests.native.streams_file import CALLS, SUM, chain

pytestmark = pytest.mark.e2e
VALUES = np.arange(256, dtype=np.float32)


@pytest.fixture
def chained(sim, sim_path, tmp_path):
    """Twenty negations, as a file."""
    path = tmp_path / "chain.dvt"
    path.write_bytes(file_bytes(chain(20)))
    return dovetail.load(path, plugins=[sim_path])


@pytest.fixture
def slow(sim):
    sim.native.set("slow", 1)
    yield
    sim.native.set("slow", 0)


def ran(run, place, x):
    (y,) = as_list(run.on(place)(x))
    return y


def as_list(results):
    return [results] if not isinstance(results, list | tuple) else list(results)


def test_a_run_on_a_stream_is_not_waited_for_and_copies_nothing(sim, chained):
    device = chained.device()
    stream = device.stream()
    x = device.tensor(VALUES)
    for _ in range(8):  # results take turns at a few addresses, each seen, recorded, replayed
        ran(chained, stream, x).wait()
    sim.reset()
    sim.native.set("fault.kernel_slow", 1)
    y = ran(chained, stream, x)
    assert not y.ready.done  # it takes 200 ms
    with pytest.raises(errors.DeviceTimeout):
        y.wait(0.01)
    y.wait()
    assert sim.moved == (0, 0)
    assert sim.counted("bytes.between") == 0
    assert sim.counted("launched") == 20
    assert sim.counted("messages") <= 3
    np.testing.assert_array_equal(y, VALUES)


def test_results_on_a_device_go_into_the_next_run_where_they_lie(sim, chained):
    device = chained.device("accel_sim")
    y = ran(chained, device, VALUES)
    assert (y.shape, y.strides, y.dtype, y.ready) == ((256,), (1,), "float32", None)
    sim.reset()
    z = ran(chained, device, y)
    assert sim.moved == (0, 0)
    assert sim.counted("bytes.between") == 0
    np.testing.assert_array_equal(z, VALUES)
    assert torch.equal(torch.from_dlpack(z.host()), torch.from_numpy(VALUES))


def test_two_streams_overlap_and_follow_events(sim, chained):
    device = chained.device()
    streams = [device.stream(), device.stream()]
    x = device.tensor(VALUES)
    sim.reset()
    sim.native.set("fault.kernel_slow", 1)
    first = ran(chained, streams[0], x)
    streams[1].follow(first)
    second = ran(chained, streams[1], first)
    assert not second.ready.done
    np.testing.assert_array_equal(second, VALUES)
    assert first.ready.done
    event = streams[1].record()
    event.wait()
    assert streams[0].handle != streams[1].handle


def test_things_may_be_dropped_in_any_order(sim, sim_path, tmp_path):
    path = tmp_path / "chain.dvt"
    path.write_bytes(file_bytes(chain(4)))
    run = dovetail.load(path, plugins=[sim_path])
    device = run.device()
    stream = device.stream()
    sim.native.set("slow", 1)
    y = run.on(stream)(VALUES.copy())  # the stream keeps the copy, which nobody else does
    sim.native.set("slow", 0)
    ready = y.ready
    assert stream.native.holds() == 1
    del run
    gc.collect()
    y.wait()
    del stream
    gc.collect()
    ready.wait()
    assert ready.done
    np.testing.assert_array_equal(y, VALUES)
    taken = device.tensor(y)
    del y
    gc.collect()
    np.testing.assert_array_equal(taken, VALUES)
    with_stream = device.stream()
    z = device.tensor(VALUES, with_stream)
    del with_stream
    np.testing.assert_array_equal(z, VALUES)


def test_dlpack_shares_memory_both_ways(sim, chained):
    device = chained.device()

    class Other:
        """A framework's tensor, which only has DLPack."""

        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **given):
            return self.tensor.__dlpack__(**given)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    y = ran(chained, device, VALUES)
    assert y.__dlpack_device__() == (12, 0)
    sim.reset()
    for each in (Other(y), Old(y)):
        shared = device.tensor(each)
        assert shared.memory is y.memory
        z = ran(chained, device, shared)
    assert sim.moved == (0, 0)
    np.testing.assert_array_equal(z, VALUES)
    y.__dlpack__()  # a capsule that nobody takes
    host = device.tensor(torch.arange(12.0).reshape(3, 4).t())
    assert host.strides == (1, 4)
    np.testing.assert_array_equal(host, np.arange(12.0).reshape(3, 4).T)
    with pytest.raises(BufferError):
        y.__dlpack__(dl_device=(1, 0))
    with pytest.raises(BufferError):
        y.__dlpack__(copy=True)
    with pytest.raises(ValueError, match="on a device"):
        np.array(y, copy=False)


class Old:
    """DLPack as it was before version 1."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, stream=None):
        return self.tensor.__dlpack__()


def test_memory_of_the_host_is_read_where_it_lies(sim, chained):
    device = chained.device()
    values = VALUES.copy()
    try:
        x = device.host_memory(values)
    except errors.PluginFailed as error:
        pytest.skip(str(error))
    values += 1
    np.testing.assert_array_equal(ran(chained, device, x), VALUES + 1)
    pinned = device.empty((256,), kind="pinned")
    assert pinned.memory.host() is not None
    assert device.empty((2, 0, 3)).nbytes == 0


def test_threads_each_have_a_stream(sim, sim_path, tmp_path):
    path = tmp_path / "sum.dvt"
    start = {"total": np.zeros(256, np.float32).tobytes()}
    path.write_bytes(file_bytes(SUM.format(plugin="accel_sim", kernel="binary"), start))
    run = dovetail.load(path, plugins=[sim_path])
    device = run.device()
    wrong = []

    def work(count):
        own = run.__copy__()  # a sequence of its own
        stream = device.stream()
        x = device.tensor(np.ones(256, np.float32), stream)
        for n in range(count):
            y = own.on(stream)(x)
            if n % 7 == 0:
                y.wait()
        stream.wait()
        if not (np.asarray(y) == count).all() or stream.native.holds() != 0:
            wrong.append(count)

    threads = [threading.Thread(target=work, args=(20 + n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_error_of_a_run_is_told_to_who_waits(sim, chained):
    device = chained.device()
    stream = device.stream()
    x = device.tensor(VALUES)
    sim.native.set("fault.kernel_fails", 3)
    y = ran(chained, stream, x)
    with pytest.raises(errors.PluginFailed):
        y.wait()
    with pytest.raises(errors.DeviceLost):
        y.host()
    np.testing.assert_array_equal(ran(chained, stream, x), VALUES)


def test_a_native_stream_is_taken_and_told(sim, chained):
    import ctypes

    library = ctypes.CDLL(str(sim.library.path))
    library.accel_sim_stream_new.restype = ctypes.c_void_p
    fill = library.accel_sim_fill
    fill.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_uint64, ctypes.c_int64, ctypes.c_double]
    library.accel_sim_stream_sync.argtypes = [ctypes.c_void_p]
    library.accel_sim_stream_free.argtypes = [ctypes.c_void_p]
    device = chained.device()
    native = library.accel_sim_stream_new(device.index)
    stream = device.stream(native)
    assert stream.handle == native
    x = device.tensor(VALUES)
    ran(chained, stream, x).wait()
    sim.native.set("slow", 1)
    assert fill(native, x.memory.handle(), 0, 256, 5.0) == 0
    sim.native.set("slow", 0)
    y = ran(chained, stream, x)
    assert fill(native, x.memory.handle(), 0, 256, 6.0) == 0
    assert not y.ready.done
    assert library.accel_sim_stream_sync(native) == 0
    np.testing.assert_array_equal(y, np.full(256, 5.0))
    np.testing.assert_array_equal(x, np.full(256, 6.0))
    del stream
    assert fill(native, x.memory.handle(), 0, 256, 7.0) == 0  # it is the caller's still
    assert library.accel_sim_stream_sync(native) == 0
    library.accel_sim_stream_free(native)
    with pytest.raises(errors.PluginFailed, match="is no stream"):
        device.stream(12345)


def test_an_operator_of_the_host_waits_for_what_it_reads_alone(sim, sim_path, tmp_path, slow):
    path = tmp_path / "calls.dvt"
    path.write_bytes(file_bytes(CALLS))
    run = dovetail.load(path, plugins=[sim_path])
    sim.reset()
    y, z = run.native.run(torch.full((256,), -4.0))
    assert (y == 4).all()
    assert (z == 4).all()


def test_mistakes_are_errors_that_say_what_to_do(sim, chained, tmp_path):
    device = chained.device()
    with pytest.raises(errors.PluginNotFound, match="its devices: 'accel_sim'"):
        chained.device("cuda")
    with pytest.raises(errors.GuardFailed, match="has no __dlpack__"):
        device.tensor("three")
    for take in (device.tensor, device.host_memory):
        with pytest.raises(errors.GuardFailed, match="laid out backwards"):
            take(VALUES.reshape(16, 16)[:, ::-1])
    with pytest.raises(errors.GuardFailed, match="no type of elements"):
        device.empty((3,), "float3")
    with pytest.raises(errors.GuardFailed, match="memory of kind"):
        device.empty((3,), kind="fast")
    with pytest.raises(errors.GuardFailed):
        ran(chained, device, device.empty((255,)))
    with pytest.raises(errors.GuardFailed):
        ran(chained, device, device.empty((256,), "float64"))
    x = device.tensor(VALUES)
    x.shape = (257,)
    with pytest.raises(errors.GuardFailed):
        ran(chained, device, x)
    with pytest.raises(TypeError):
        chained.native.run_on((VALUES,), 3, None)
    with pytest.raises(ValueError, match="needs an event"):
        chained.native.run_on((VALUES,), device.stream().native, None)
    with pytest.raises(errors.LimitExceeded, match="8 streams"):
        [device.stream() for _ in range(9)]
    sim.native.set("kill", 1)
    with pytest.raises(errors.DeviceLost):
        [ran(chained, device, device.tensor(VALUES)) for _ in range(10**6)]
    x = ran(chained, device, VALUES)
    sim.native.close()
    with pytest.raises(errors.DeviceLost):
        x.host()
    with pytest.raises(errors.DeviceLost):
        x.__dlpack__()
