"""What training steps that do odd things with autograd are written with."""

import sys

import torch

CASES = {}
SWITCHING = {}  # those of them that differ in the process that is told to switch


def case(fn):
    """Register a function ``case(wrap)``: what ``wrap(model)`` gives is called in its place."""
    CASES[fn.__name__] = fn
    return fn


def seen(value):
    """What a caller can see of a value."""
    if isinstance(value, torch.Tensor):
        flags = f"{value.dtype} {list(value.shape)} {list(value.stride())}"
        flags += f" grad={value.requires_grad} leaf={value.is_leaf} view={value._is_view()}"
        return [flags, torch.view_as_real(value).tolist() if value.is_complex() else value.tolist()]
    if isinstance(value, tuple | list):
        return [seen(each) for each in value]
    return repr(value)


def leaf(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()


def data(*shape, seed=0):
    return leaf(*shape, seed=seed).detach()


def made(make):
    torch.manual_seed(11)
    return make().double()


def stepped(model, call, inputs, steps=3, **optimizer):
    """Losses of steps of SGD, then parameters, gradients and buffers."""
    torch.manual_seed(5)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9, **optimizer)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        result = call(*inputs)
        loss = (result[0] if isinstance(result, tuple) else result).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss)
    return [
        *found,
        *([p, p.grad] for p in model.parameters()),
        *model.buffers(),
        torch.get_rng_state().sum(),
    ]


def switching(fn):
    """Register a case in which one process does what another does not, by ``switched()``."""
    SWITCHING[fn.__name__] = fn
    return case(fn)


def switched():
    """Whether this process is the one that trains or shares other tensors, or has other sizes."""
    return "switch" in sys.argv
