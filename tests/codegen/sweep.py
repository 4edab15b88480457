"""PyTorch's own op_db against eager, one op at a time: what a backend gets wrong, and why.

``python -m tests.codegen.sweep [first] [step] [samples] [dtypes]`` prints every op whose result
differs (``0 1 8 float16,bfloat16``: all ops, eight samples each); the test beside it runs the same
function. Where eager and compiled differ, both are held against eager in float64: ours may be off
by twice as much as eager is.
"""

from __future__ import annotations

import os
import sys
import warnings

import torch
from torch.utils import _pytree as pytree

CASES = (
    ("float32", False),
    ("float32", True),
    ("bfloat16", False),
    ("int64", False),
)
# Of each case; the long forms (make sweep, make test-backends) take two.
LONG = os.environ.get("DOVETAIL_OP_DB") == "alone" or "DOVETAIL_BACKENDS" in os.environ
SAMPLES = 2 if LONG else 1
# Results that are not determined: uninitialised memory, random draws without a seed of their own.
UNDETERMINED = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty"}
UNDETERMINED |= {"new_empty_strided", "nn.functional.alpha_dropout", "nn.functional.dropout"}


def operators():
    """Every entry of op_db, in order."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if op.name not in UNDETERMINED and "jiterator" not in op.name]


def samples(op, dtype, grad, device="cpu"):
    """The first sample inputs of an op, or none where it has none for the type."""
    kind = getattr(torch, dtype)
    if kind not in op.supported_dtypes(device) or (grad and not op.supports_autograd):
        return []
    found = []
    for sample in op.sample_inputs(device, kind, requires_grad=grad):
        found.append(sample)
        if len(found) == SAMPLES:
            break
    return found


def run(fn, sample, grad):
    """Outputs and gradients of one call."""
    inputs = pytree.tree_map(_copy, (sample.input, sample.args, sample.kwargs))
    torch.manual_seed(7)
    result = fn(inputs[0], *inputs[1], **inputs[2])
    leaves = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
    if not grad:
        return leaves
    wanted = [x for x in leaves if x.requires_grad and x.is_floating_point()]
    given = [x for x in pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor)]
    given = [x for x in given if x.requires_grad]
    if not wanted or not given:
        return leaves
    total = sum(x.sum() for x in wanted)
    grads = torch.autograd.grad(total, given, allow_unused=True)
    return [*leaves, *grads]


def _copy(x):
    if not isinstance(x, torch.Tensor):
        return x
    return x.detach().clone().requires_grad_(x.requires_grad)


def attempt(fn, sample, grad):
    """A result, or the exception."""
    try:
        return run(fn, sample, grad), None
    except Exception as error:
        return None, error


def difference(expected, actual, exact=None):
    """What differs between two lists of tensors; empty when nothing does."""
    if len(expected) != len(actual):
        return f"{len(actual)} tensors for {len(expected)}"
    for a, b in zip(expected, actual, strict=True):
        if a is None or b is None:
            if a is not b:
                return "a gradient is missing"
            continue
        if a.is_sparse or a.is_quantized:
            continue
        try:
            torch.testing.assert_close(b, a, equal_nan=True, rtol=_rtol(a), atol=_atol(a))
        except AssertionError as error:
            return str(error).replace("\n", " ")[:300]
    return ""


def _rtol(x):
    return {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 2e-3}.get(x.dtype, 1e-6)


def _atol(x):
    return {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 1e-3}.get(x.dtype, 1e-8)


def check(op, backend="cpu", alone=False, device="cpu", kinds=None):
    """Every case of one op: a list of (case, problem), and how many were compared.

    All that want gradients run in one program, and all that do not; one by one where that one is
    not right or cannot be, or ``alone``. ``kinds`` are other cases than ``CASES``.
    """
    problems, compared = [], 0
    for grad in (False, True):
        cases = runnable(op, grad, device, kinds or CASES)
        compared += len(cases)
        if not alone and len(cases) > 1 and is_right_together(op, cases, grad, backend):
            continue
        for case, (sample, expected) in cases.items():
            torch._dynamo.reset()
            problem = compare(op, sample, grad, backend, expected)
            if problem:
                problems.append((case, problem))
    return problems, compared


def runnable(op, grad, device, kinds):
    """The cases of an op that eager runs, by name: the sample, and what eager makes of it."""
    found = {}
    for dtype in (dtype for dtype, wants in kinds if wants == grad):
        for number, sample in enumerate(samples(op, dtype, grad, device)):
            expected, refused = attempt(op.op, sample, grad)
            if refused is None:
                name = f"{op.formatted_name} {dtype}{' backward' if grad else ''} sample {number}"
                found[name] = sample, expected
    return found


def is_right_together(op, cases, grad, backend):
    """Whether one program of all cases gives what eager does; a break in it is none."""
    given = [(sample.input, sample.args, sample.kwargs) for sample, _ in cases.values()]

    def fn(given):
        return [op.op(first, *args, **kwargs) for first, args, kwargs in given]

    torch._dynamo.reset()
    sample = type(next(iter(cases.values()))[0])(given)
    compiled = torch.compile(fn, backend=backend, dynamic=False, fullgraph=True)
    expected, refused = attempt(fn, sample, grad)
    actual, failed = attempt(compiled, sample, grad)
    return refused is None and failed is None and not difference(expected, actual)


def compare(op, sample, grad, backend, expected):
    """The difference between eager and compiled; what Dynamo itself refuses is no difference."""
    actual, error = attempt(torch.compile(op.op, backend=backend, dynamic=False), sample, grad)
    if error is None:
        problem = difference(expected, actual)
        if not problem or is_nearer(op, sample, grad, expected, actual):
            return ""
    else:
        problem = f"{type(error).__name__}: {str(error)[:300]}"
    torch._dynamo.reset()
    other, failed = attempt(torch.compile(op.op, backend="aot_eager", dynamic=False), sample, grad)
    if failed is not None or difference(expected, other):
        return ""
    return problem


def is_nearer(op, sample, grad, expected, actual):
    """Whether compiled results are about as near as eager's to what float64 gives."""
    wide = pytree.tree_map(_widen, (sample.input, sample.args, sample.kwargs))
    exact, failed = attempt(op.op, type(sample)(wide[0], args=wide[1], kwargs=wide[2]), grad)
    if failed is not None or not len(exact) == len(expected) == len(actual):
        return False
    return all(map(_is_near, exact, expected, actual))


def _widen(x):
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        return x
    return x.detach().double().requires_grad_(x.requires_grad)


def _is_near(exact, expected, actual):
    if expected is None or not expected.is_floating_point():
        return not difference([expected], [actual])
    if (expected.shape, expected.dtype) != (actual.shape, actual.dtype):
        return False
    if not difference([exact.to(expected.dtype)], [actual]):
        return True
    theirs, ours = ((x.double() - exact).abs() for x in (expected, actual))
    worst = theirs[theirs.isfinite()].max() if theirs.isfinite().any() else 0.0
    return bool(
        ((ours <= 2 * worst) | _equal(actual, expected) | _equal(actual.double(), exact)).all()
    )


def _equal(a, b):
    """Where two tensors are equal, or both NaN."""
    return (a == b) | (a.isnan() & b.isnan())


def main():
    os.environ.setdefault("DOVETAIL_STRICT", "1")
    os.environ.setdefault("DOVETAIL_KEEP_GRAPHS", "0")
    import dovetail

    dovetail.list_backends()
    warnings.simplefilter("ignore")
    given = dict(enumerate(sys.argv[1:]))
    first, step = int(given.get(0, 0)), int(given.get(1, 1))
    global SAMPLES, CASES
    SAMPLES = int(given.get(2, 2))
    if 3 in given:
        CASES = tuple((dtype, False) for dtype in given[3].split(","))
    total = 0
    for op in operators()[first::step]:
        problems, compared = check(op, alone=True)
        total += compared
        for case, problem in problems:
            print(case, "|", problem, flush=True)
    print(f"{total} cases compared")


if __name__ == "__main__":
    main()
