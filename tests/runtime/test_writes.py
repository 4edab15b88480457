"""Each way of writing to a tensor: whether PyTorch counts it, and that what is kept is made anew.

``kept`` is what a frozen model does with a weight, without a compiler: a value that is computed
from it once, and again when it changed. Nothing here compares whole contents (``check_weights``
is another runner), so it is the cheap check at every call that is tested.
"""

import ctypes
import gc
import threading

import numpy as np
import pytest
import torch
from torch import nn

from dovetail.runtime import writes
from dovetail.runtime.frozen import FrozenRunner

SIZE = (64, 96)


def kept():
    """Returns twice its argument, computed when the argument is found to have changed."""
    return FrozenRunner(lambda tensors: [tensors[0].detach() * 2], lambda values: values, [0])


def is_fresh(run, tensor):
    return torch.equal(run([tensor])[0], tensor.detach() * 2)


def with_gradient(weight, gradient=None):
    weight.grad = torch.ones_like(weight) if gradient is None else gradient
    return weight


def linear_of(weight):
    module = nn.Linear(SIZE[1], SIZE[0], bias=False)
    module.weight = weight
    return module


# ---- ways that PyTorch counts, or that show in the address --------------------------------------


@torch.no_grad()
def out_variant(weight):
    torch.mul(weight, 2, out=weight)


def in_inference_mode(weight):
    with torch.inference_mode():
        weight.mul_(2)


def a_view_in_inference_mode(weight):
    with torch.inference_mode():
        weight.view(-1).mul_(2)


@torch.no_grad()
def foreach(weight):
    torch._foreach_mul_([weight], 2.0)


def through_detach(weight):
    weight.detach().mul_(2)


def part_of_it(weight):
    weight.detach()[3, 5] = 7


def load_state_dict(weight):
    linear_of(weight).load_state_dict({"weight": torch.zeros(SIZE)})


def initialiser(weight):
    nn.init.zeros_(weight)


def moving_average(weight):
    average = torch.optim.swa_utils.AveragedModel(linear_of(nn.Parameter(torch.ones(SIZE))))
    average.module.weight = weight
    average.n_averaged += 1
    average.update_parameters(linear_of(nn.Parameter(torch.zeros(SIZE))))


def a_compiled_function(weight):
    with torch.no_grad():
        torch.compile(lambda t: t.mul_(2), backend="aten")(weight)


@torch.library.custom_op("stale_test_declared::fill", mutates_args={"x"})
def _fill(x: torch.Tensor) -> None:
    x.detach().numpy()[:] = 9


def custom_operator(weight):
    _fill(weight.detach())


def data_assigned(weight):
    weight.data = torch.zeros(SIZE)


def swapped(weight):
    torch.utils.swap_tensors(weight, nn.Parameter(torch.zeros(SIZE)))


@torch.no_grad()
def set_to_another(weight):
    weight.set_(torch.zeros(SIZE))


def vector_to_parameters(weight):
    nn.utils.vector_to_parameters(torch.zeros(weight.numel()), [weight])


def module_apply(weight):
    linear_of(weight)._apply(lambda tensor: tensor * 2)  # what Module.to does


def storage_resized(weight):
    storage = weight.untyped_storage()
    size, keep = storage.nbytes(), torch.zeros(1 << 16)
    storage.resize_(0)
    storage.resize_(size)
    weight.detach().numpy()[:] = 3
    del keep


COUNTED = [
    out_variant,
    in_inference_mode,
    a_view_in_inference_mode,
    foreach,
    through_detach,
    part_of_it,
    load_state_dict,
    initialiser,
    moving_average,
    a_compiled_function,
    custom_operator,
]
MOVED = [
    data_assigned,
    swapped,
    set_to_another,
    vector_to_parameters,
    module_apply,
    storage_resized,
]


def made(shape=SIZE):
    return nn.Parameter(torch.randn(shape))


@pytest.mark.parametrize("write", COUNTED)
def test_a_counted_write_is_noticed(write):
    weight, run = made(), kept()
    run([weight])
    before = weight._version
    write(weight)
    assert weight._version > before
    assert is_fresh(run, weight)


@pytest.mark.parametrize("write", MOVED)
def test_other_memory_is_noticed(write):
    weight, run = made(), kept()
    run([weight])
    write(weight)
    assert is_fresh(run, weight)


def test_another_tensor_in_its_place_is_noticed():
    """As ``load_state_dict(assign=True)`` and ``torch.func.functional_call`` give."""
    module, run = linear_of(made()), kept()
    run([module.weight])
    module.load_state_dict({"weight": torch.zeros(SIZE)}, assign=True)
    assert is_fresh(run, module.weight)
    other = torch.ones(SIZE)
    assert is_fresh(run, other)
    assert is_fresh(run, module.weight)


# ---- ways that PyTorch does not count -----------------------------------------------------------


def data_mul(weight):
    weight.data.mul_(2)


def numpy_view(weight):
    weight.detach().numpy()[:] = 3


def numpy_asarray(weight):
    array = np.asarray(weight.detach())
    array += 1


def dlpack(weight):
    torch.from_dlpack(weight.detach()).mul_(2)


def from_buffer(weight):
    torch.frombuffer(weight.detach().numpy(), dtype=torch.float32).mul_(2)


def storage_copy(weight):
    weight.untyped_storage().copy_(torch.zeros(SIZE).untyped_storage())


def storage_fill(weight):
    weight.untyped_storage().fill_(1)


def raw_pointer(weight):
    ctypes.memset(weight.data_ptr(), 0, weight.nbytes)


def version_kept(weight):
    with torch.autograd._unsafe_preserve_version_counter(weight), torch.no_grad():
        weight.mul_(2)


def operator_without_autograd(weight):
    """Its schema says that it writes, but nobody registered a kernel that counts."""
    torch.ops.stale_test.declared(weight.detach())


def hidden_in_an_operator(weight):
    torch.ops.stale_test.hidden(weight.detach())


@torch.no_grad()
def fused_function(weight):
    torch._fused_sgd_(
        [weight],
        [torch.ones(SIZE)],
        [],
        weight_decay=0.0,
        momentum=0.0,
        lr=0.1,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


def applied(weight):
    weight.detach().requires_grad_(False).apply_(lambda value: value + 1)


UNCOUNTED = [
    data_mul,
    numpy_view,
    numpy_asarray,
    dlpack,
    from_buffer,
    storage_copy,
    storage_fill,
    raw_pointer,
    version_kept,
    operator_without_autograd,
    hidden_in_an_operator,
    fused_function,
    applied,
]


@pytest.fixture(autouse=True, scope="module")
def operators():
    """An operator that says that it writes, and one that does not."""

    def write(x):
        x.detach().numpy()[:] = 9

    library = torch.library.Library("stale_test", "DEF")
    library.define("declared(Tensor(a!) x) -> ()")
    library.define("hidden(Tensor x) -> ()")
    library.impl("declared", write, "CPU")
    library.impl("hidden", write, "CPU")
    yield
    library._destroy()


@pytest.mark.parametrize("write", UNCOUNTED)
def test_an_uncounted_write_to_a_whole_tensor_is_noticed(write):
    weight, run = made(), kept()
    run([weight])
    before = weight._version, weight.data_ptr()
    write(weight)
    assert (weight._version, weight.data_ptr()) == before
    assert is_fresh(run, weight)


@pytest.mark.parametrize("strided", ["dense", "transposed", "gaps", "expanded", "one axis"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.uint8, torch.complex128])
def test_samples_of_any_layout(dtype, strided):
    base = torch.zeros(40, 60, dtype=dtype)
    weight = {
        "dense": base,
        "transposed": base.T,
        "gaps": base[:, ::3],
        "expanded": base[:1].expand(40, 60),
        "one axis": base[:, 7],
    }[strided]
    run = kept()
    weight = nn.Parameter(weight, requires_grad=False)
    run([weight])
    base.data.fill_(1)
    assert is_fresh(run, weight)


@pytest.mark.parametrize("channels", [3, 16384])
def test_running_statistics_that_eager_updates(channels):
    module, run = nn.BatchNorm1d(channels), kept()
    run([module.running_mean])
    before = module.running_mean._version
    x = torch.zeros(2, channels, 4)
    x[:, 1] = 1  # one channel alone, so that only comparing all of them finds it
    module(x)
    assert module.running_mean._version == before
    assert is_fresh(run, module.running_mean)


def test_an_observer_of_quantisation():
    low, run = torch.zeros(1), kept()
    run([low])
    on, one = torch.tensor([1]), torch.ones(1)
    zero = torch.zeros(1, dtype=torch.int32)
    torch.fused_moving_avg_obs_fake_quant(
        torch.randn(4, 4), on, on, low, one, one.clone(), zero, 0.1, 0, 255, 0, False, False
    )
    assert low._version == 0
    assert is_fresh(run, low)


def _peer(shared, gate, written, folder):
    import torch.distributed as dist

    shared.fill_(4)
    written.set()
    gate.wait()
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=1, world_size=2)
    weight = torch.full(SIZE, 5.0)
    for operation in collectives():
        operation(weight)
    dist.barrier()
    dist.destroy_process_group()


def collectives():
    import torch.distributed as dist

    return [
        dist.all_reduce,
        lambda t: dist.broadcast(t, 1),
        lambda t: dist.all_to_all_single(t, torch.full(SIZE, 3.0 + dist.get_rank())),
        lambda t: dist.recv(t, 1) if dist.get_rank() == 0 else dist.send(t + 1, 0),
        lambda t: dist.scatter(t, [t + 2, t + 3] if dist.get_rank() == 1 else None, 1),
    ]


@pytest.mark.e2e
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="PyTorch without gloo")
def test_another_process_writes(tmp_path):
    """To shared memory, and by collectives of a group of two."""
    import torch.distributed as dist
    import torch.multiprocessing as multi

    context = multi.get_context("spawn")
    shared = torch.zeros(SIZE).share_memory_()
    gate, written = context.Event(), context.Event()
    run = kept()
    run([nn.Parameter(shared)])
    peer = context.Process(target=_peer, args=(shared, gate, written, str(tmp_path)))
    peer.start()
    try:
        assert written.wait(120)
        assert shared._version == 0
        assert is_fresh(run, shared)
        gate.set()
        dist.init_process_group(
            "gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=2
        )
        weight = made()
        for operation in collectives():
            run([weight])
            version = weight._version
            operation(weight.detach())
            assert weight._version == version
            assert is_fresh(run, weight)
        dist.barrier()
        dist.destroy_process_group()
    finally:
        gate.set()
        peer.join(60)
    assert peer.exitcode == 0


# ---- optimisers ---------------------------------------------------------------------------------


def one_element(value=1.0):
    """A gradient for an element that no sample reads."""
    gradient = torch.zeros(SIZE)
    gradient[1, 2] = value
    return gradient


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_a_fused_step_is_noticed_where_no_sample_shows_it(kind):
    weight, run = made(), kept()
    weight.data[0, 0] = weight.data[-1, -1] = 0
    optimiser = getattr(torch.optim, kind)([weight], lr=0.1, fused=True)
    optimiser.defaults["weight_decay"] = optimiser.param_groups[0]["weight_decay"] = 0
    how = writes.how_to_read((weight,))
    run([weight])
    before = writes.state((weight,), how)
    with_gradient(weight, one_element())
    optimiser.step()
    assert writes.state((weight,), how) == before
    assert is_fresh(run, weight)


class RawPointers(torch.optim.Optimizer):
    """An optimiser of another package, in C, as far as PyTorch can see."""

    def __init__(self, params):
        super().__init__(params, {})

    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                weight.detach().numpy()[1, 2] += 1


def test_an_optimiser_of_another_package():
    weight, run = made(), kept()
    run([weight])
    RawPointers([weight]).step()
    assert is_fresh(run, weight)


def test_a_compiled_step():
    weight, run = made(), kept()
    optimiser = torch.optim.SGD([with_gradient(weight, one_element())], lr=0.1, fused=True)
    run([weight])
    torch.compile(optimiser.step, backend="aten")()
    assert is_fresh(run, weight)


def test_a_step_within_backward():
    weight, run = made(), kept()
    optimiser = torch.optim.SGD([weight], lr=0.1, fused=True)
    weight.register_post_accumulate_grad_hook(lambda _: optimiser.step())
    run([weight])
    (weight * one_element()).sum().backward()
    assert is_fresh(run, weight)


def test_a_step_makes_anew_only_what_its_parameters_are_in():
    mine, other = made(), made()
    run, beside = kept(), kept()
    run([mine]), beside([other])
    optimiser = torch.optim.SGD([with_gradient(mine)], lr=0.1, fused=True)
    for packs in (2, 3):
        optimiser.step()
        run([mine]), beside([other])
        assert (run.packs, beside.packs) == (packs, 1)


def test_a_view_of_what_an_optimiser_owns():
    """As the parameters of a flattened model are."""
    flat = nn.Parameter(torch.randn(2, *SIZE))
    view, run = flat.detach()[1], kept()
    view = nn.Parameter(view, requires_grad=False)
    run([view])
    gradient = torch.zeros(2, *SIZE)
    gradient[1] = one_element()
    torch.optim.SGD([with_gradient(flat, gradient)], lr=0.1, fused=True).step()
    assert is_fresh(run, view)


def test_a_sparse_parameter_of_an_optimiser_has_all_made_anew():
    weight, run = made(), kept()
    run([weight])
    weight.data[1, 2] += 1
    writes.changed([torch.eye(3).to_sparse()])
    assert is_fresh(run, weight)


def test_a_write_while_it_is_read_is_not_lost():
    """Another thread's step ends between the reading of a weight and the keeping of the result."""
    weight = made()
    optimiser = torch.optim.SGD([with_gradient(weight, one_element())], lr=0.1, fused=True)

    def once(tensors):
        value = tensors[0].detach() * 2
        if runner.packs == 0:
            thread = threading.Thread(target=optimiser.step)
            thread.start()
            thread.join()
        return [value]

    runner = FrozenRunner(once, lambda values: values, [0])
    runner([weight])
    assert is_fresh(runner, weight)


# ---- the rest ---------------------------------------------------------------------------------


def test_tensors_without_a_version_are_compared_whole():
    with torch.inference_mode():
        weight, run = torch.randn(SIZE), kept()
        run([weight])
        run([weight])
        assert run.packs == 1
        weight[1, 2] += 1
        assert is_fresh(run, weight)


def test_a_watcher_that_is_gone_is_not_kept():
    before = len(writes._watchers)
    run = kept()
    assert len(writes._watchers) == before + 1
    del run
    gc.collect()
    assert len(writes._watchers) <= before
