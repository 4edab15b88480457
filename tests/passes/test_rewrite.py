"""Pattern rewriting."""

import pytest
import torch

import dovetail
from dovetail import errors, history
from dovetail.passes import PassManager, rewrite

aten = torch.ops.aten


@rewrite
class ScaleShift:
    """(x * scale) + shift becomes addcmul."""

    def pattern(x, scale, shift):
        return aten.add.Tensor(aten.mul.Tensor(x, scale), shift)

    def replacement(x, scale, shift):
        return aten.addcmul.default(shift, x, scale)

    def where(match):
        return all(isinstance(match[n], torch.fx.Node) for n in ("x", "scale", "shift"))


def compiled(fn, *passes):
    manager = PassManager()
    for each in passes:
        manager = manager.add("post_grad", each, before="noops")
    return torch.compile(fn, backend="aten", options={"passes": manager})


def final_text():
    return history.recent()[-1].graphs[-1].segments[0][1]


def t(*shape):
    return torch.randn(*shape)


def test_every_occurrence_is_replaced():
    x, a, b = t(3), t(3), t(3)
    fn = lambda x, a, b: ((x * a + b).sin() * b + a).cos()  # noqa: E731
    torch.testing.assert_close(compiled(fn, ScaleShift)(x, a, b), fn(x, a, b))
    assert final_text().count("aten.addcmul") == 2
    assert "aten.mul" not in final_text()


def test_the_condition_is_asked():
    x, a = t(3), t(3)
    compiled(lambda x, a: x * 2 + a, ScaleShift)(x, a)
    assert "addcmul" not in final_text()


def test_what_is_used_elsewhere_is_left_alone():
    def fn(x, a, b):
        product = x * a
        return product + b, product.sin()

    x, a, b = t(3), t(3), t(3)
    torch.testing.assert_close(compiled(fn, ScaleShift)(x, a, b), fn(x, a, b))
    assert "addcmul" not in final_text()


def test_a_parameter_used_twice_must_be_the_same_value():
    @rewrite
    class Square:
        def pattern(x):
            return aten.mul.Tensor(x, x)

        def replacement(x):
            return aten.pow.Tensor_Scalar(x, 2)

    x, y = t(3), t(3)
    compiled(lambda x, y: x * x + x * y, Square)(x, y)
    assert final_text().count("aten.pow") == 1
    assert final_text().count("aten.mul") == 1


def test_numbers_match_themselves_only():
    @rewrite
    class Halve:
        def pattern(x):
            return aten.mul.Tensor(x, 0.5)

        def replacement(x):
            return aten.div.Tensor(x, 2.0)

    compiled(lambda x: (x * 0.5, x * 0.25), Halve)(t(3))
    assert final_text().count("aten.div") == 1


def test_a_packet_matches_any_overload():
    @rewrite
    class NoAdd:
        def pattern(x, y):
            return aten.add(x, y)

        def replacement(x, y):
            return aten.sub.Tensor(x, y)

    x = t(3)
    torch.testing.assert_close(compiled(lambda x: x + 1, NoAdd)(x), x - 1)


def test_branches_are_rewritten_too():
    def fn(x, a, b):
        return torch.cond(x.sum() > 0, lambda x, a, b: x * a + b, lambda x, a, b: x - a, (x, a, b))

    x, a, b = t(3).abs(), t(3), t(3)
    torch.testing.assert_close(compiled(fn, ScaleShift)(x, a, b), fn(x, a, b))
    assert "addcmul" in final_text()


def test_training_graphs_are_rewritten_before_differentiation_is_cut():
    x, a, b = (t(3).requires_grad_() for _ in range(3))
    manager = PassManager().add("joint", ScaleShift)
    run = torch.compile(
        lambda x, a, b: (x * a + b).sin().sum(), backend="aten", options={"passes": manager}
    )
    run(x, a, b).backward()
    torch.testing.assert_close(b.grad, (x * a + b).cos())
    texts = [g.segments[0][1] for g in history.recent()[-1].graphs]
    assert any("addcmul" in text for text in texts)


def test_the_identity_follows_pattern_and_replacement():
    def make(number):
        @rewrite
        class Scale:
            def pattern(x):
                return aten.mul.Tensor(x, 0.5)

            def replacement(x):
                return aten.mul.Tensor(x, number)

        return Scale

    assert make(2).identity == make(2).identity
    assert make(2).identity != make(3).identity


def test_mistakes_are_named():
    with pytest.raises(errors.PassFailed, match="'NoReplacement' has no function 'replacement'"):

        @rewrite
        class NoReplacement:
            def pattern(x):
                return aten.sin.default(x)

    with pytest.raises(errors.PassFailed, match="different parameters"):

        @rewrite
        class Uneven:
            def pattern(x):
                return aten.sin.default(x)

            def replacement(x, y):
                return aten.cos.default(x)

    with pytest.raises(errors.PassFailed, match="does not return one call's result"):

        @rewrite
        class Nothing:
            def pattern(x):
                return x

            def replacement(x):
                return x

    assert isinstance(ScaleShift, dovetail.Pass)
