"""Operators that untrusted files may call: the list follows its rule and withstands the attack.

The long form (``make attack``) collects op_db's calls again and tries every variant.
"""

import os
import shutil

import pytest
import torch

from dovetail.errors import RunFailed
from dovetail.ir.host_operators import LISTED
from dovetail.runtime.host_checks import CHECKS, checked
from tests.attack.derive import SAMPLES, candidates, in_dtypes, operator
from tests.attack.rule import FOUND, refusal
from tests.attack.run import attack_calls
from tests.attack.samples import collect, read

LONG = os.environ.get("DOVETAIL_ATTACK")
SHORT = 25  # variants of a call, chosen by a seed
NEEDED = """
    mm.default addmm.default bmm.default convolution.default embedding.default cat.default
    native_layer_norm.default native_group_norm.default _softmax.default cumsum.default
    _native_batch_norm_legit_no_training.default max_pool2d_with_indices.default topk.default
    _scaled_dot_product_flash_attention_for_cpu.default index.Tensor gather.default
    scatter_add.default index_put.default sort.default arange.start_step
"""
needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CC", "cc")) is None, reason="guarded memory needs a C compiler"
)


def test_every_listed_operator_follows_the_rule():
    for name in LISTED:
        if operator(name) is not None:  # else it is of another version of PyTorch
            assert refusal(operator(name)) == "", name


def test_every_listed_operator_is_attacked():
    assert {op for op, _, _ in read()} == LISTED


def test_what_the_rule_leaves_out():
    for name in (
        "aten.max_pool2d_with_indices_backward.default",
        "aten.empty.memory_format",
        "aten.from_file.default",
        "aten.as_strided.default",
        "aten._embedding_bag.default",
        "aten._fft_c2c.default",
        "aten.relu_.default",
        "aten.item.default",
        *(f"{base}.default" for base in FOUND),
    ):
        target = operator(name)
        assert target is None or refusal(target), name
        assert name not in LISTED


def test_checked_operators_are_listed():
    assert {op for op in CHECKS if operator(op) is not None} <= LISTED


def test_no_operator_may_lock_pages():
    arange = checked("aten.arange.default", torch.ops.aten.arange.default)
    assert torch.equal(arange(3, pin_memory=False), torch.arange(3))
    with pytest.raises(RunFailed, match="only a trusted file may"):
        arange(3, pin_memory=True)


def test_models_find_what_they_need():
    """What every exported model is made of stays on the list, whatever the rule becomes."""
    assert {f"aten.{name}" for name in NEEDED.split()} <= LISTED


@needs_compiler
def test_guarded_memory_finds_what_it_should(tmp_path):
    """The attack itself: operators that are known to fail do."""
    ones = {"t": ["float32", [1, 1, 2, 2], None, None]}
    index = {"t": ["int64", [1, 1, 2, 2], None, 0]}
    image = {"t": ["float32", [1, 1, 4, 4], None, None]}
    pool = [ones, image, [2, 2], [2, 2], [0, 0], [1, 1], False, index]
    calls = [
        ("aten.max_pool2d_with_indices_backward.default", pool, {}),
        ("aten.empty_like.default", [ones], {}),
        ("aten.relu_.default", [{"t": ["float32", [2], None, -1.0]}], {}),
    ]
    findings, _ = attack_calls(calls, tmp_path, pairs=0)
    by_op = {finding.op.split(".")[1]: finding.problem for finding in findings}
    assert "died" in by_op["max_pool2d_with_indices_backward"]
    assert "nothing wrote" in by_op["empty_like"]
    assert "writes to its arguments" in by_op["relu_"]


@needs_compiler
def test_every_listed_operator_withstands_the_attack(tmp_path):
    if LONG:
        calls = in_dtypes([call for call in candidates(collect(2 * SAMPLES)) if call[0] in LISTED])
        findings, tried = attack_calls(calls, tmp_path, pairs=20)
    else:
        calls = [call for call in read() if operator(call[0]) is not None]
        findings, tried = attack_calls(calls, tmp_path, pairs=2, limit=SHORT)
    assert findings == []
    assert tried > 10 * len(calls)


def test_paddings_are_counted():
    """PyTorch 2.11 reads six amounts, however many are given."""
    pad = checked("aten.reflection_pad3d.default", torch.ops.aten.reflection_pad3d.default)
    x = torch.arange(8.0).view(1, 2, 2, 2)
    for amounts in ([], [1], [1] * 5, [1] * 7):
        with pytest.raises(RunFailed, match="only a trusted file"):
            pad(x, amounts)
    assert pad(x, [1] * 6).shape == (1, 4, 4, 4)
