"""Results judged against float64, beside eager's own errors."""

import copy

import torch
from torch.utils import _pytree as pytree

# Beside eager's error: sums in another order are as right, and may be twice as far off.
TIMES, LEAST = 2.0, 2e-6
# Errors of a step enter the next one's weights.
TRAINING_TIMES, TRAINING_LEAST = 3.0, 2e-5


def tensors(result):
    result = result.to_tuple() if hasattr(result, "to_tuple") else result
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def run(fn, inputs):
    torch.manual_seed(5)
    with torch.no_grad():
        return tensors(fn(**inputs))


def double(model):
    """A copy in float64; experts one by one, for PyTorch's grouped product has no float64."""
    made = copy.deepcopy(model).double()
    for module in made.modules():
        if hasattr(getattr(module, "config", None), "_experts_implementation"):
            module.config = copy.copy(module.config)
            module.config._experts_implementation = "eager"
    return made


def in_double(inputs):
    return {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}


def check(found, expected, exact, times=TIMES, least=LEAST):
    """Assert that results have eager's types and shapes, and errors no larger than allowed."""
    assert len(found) == len(expected)
    for n, (f, e, x) in enumerate(zip(found, expected, exact, strict=True)):
        assert (f.shape, f.dtype) == (e.shape, e.dtype), f"result {n}"
        f, e, x = f.double(), e.double(), x.double()
        x = torch.where(x.isfinite(), x, e)  # where float64 reaches masks that float32 does not
        assert torch.equal(f.isfinite(), e.isfinite()), f"result {n}"
        known = e.isfinite()
        if not known.any():
            continue
        f, e, x = f[known], e[known], x[known]
        largest = float(x.abs().max()) or 1.0
        ours, eagers = (float((r - x).abs().max()) / largest for r in (f, e))
        assert ours <= times * eagers + least, f"result {n}: {ours:.1e}, eager {eagers:.1e}"


def train(fn, model, batches):
    """Losses and the last gradients of a step of training for each batch, then the buffers."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=1e-2), []
    for inputs in batches:
        torch.manual_seed(5)
        optimizer.zero_grad()
        loss = sum(_weighed(t) for t in tensors(fn(**inputs)) if t.requires_grad)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [*losses, *gradients, *model.buffers()]


def _weighed(result):
    """A sum that no norm makes constant, as it does that of squares."""
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).reshape(result.shape)
    return (result * weights).sum() / result.numel() ** 0.5
