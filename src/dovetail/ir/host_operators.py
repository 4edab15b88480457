"""PyTorch's operators that a file may call although nobody vouches for it.

Each checks its arguments: no values, sizes or numbers make it touch memory that is not its own,
hand out memory that nothing has written, or end the process. A rule says which may come here
(``tests/attack/rule.py``), and an attack on every one of them that they may stay: hostile variants
of op_db's calls on guarded memory (``make attack``, a part of it in ``make test``). For a few, what
they leave unchecked is checked before the call (``runtime/host_checks.py``). Operators of other
namespaces are other people's code and never come here. See docs/security.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.errors import HOW_TO_TRUST, UntrustedArtifact

_SHOWN = 10  # names in one message

_NAMES = """
    _adaptive_avg_pool2d.default _adaptive_avg_pool3d.default _cdist_forward.default
    _fused_rms_norm.default _log_softmax.default _native_batch_norm_legit_no_training.default
    _pdist_forward.default _prelu_kernel.default _safe_softmax.default
    _scaled_dot_product_flash_attention_for_cpu.default _softmax.default _to_copy.default
    _trilinear.default _unsafe_index.Tensor _unsafe_view.default
    _upsample_nearest_exact1d.default _upsample_nearest_exact2d.default
    _upsample_nearest_exact2d.vec abs.default acos.default acosh.default
    adaptive_avg_pool1d.default adaptive_avg_pool2d.default adaptive_max_pool2d.default
    adaptive_max_pool3d.default add.Scalar add.Tensor addbmm.default addcdiv.default
    addcmul.default addmm.default addmv.default addr.default alias.default alias_copy.default
    all.default all.dim all.dims amax.default amin.default aminmax.default angle.default
    any.default any.dim any.dims arange.default arange.start arange.start_step argmax.default
    argmin.default asin.default asinh.default atan.default atan2.default atanh.default
    avg_pool1d.default avg_pool2d.default avg_pool3d.default baddbmm.default bernoulli.default
    binary_cross_entropy_with_logits.default bitwise_and.Scalar bitwise_and.Tensor
    bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar bitwise_not.default
    bitwise_or.Scalar bitwise_or.Tensor bitwise_right_shift.Tensor
    bitwise_right_shift.Tensor_Scalar bitwise_xor.Scalar bitwise_xor.Tensor block_diag.default
    bmm.default bucketize.Tensor cat.default ceil.default celu.default channel_shuffle.default
    cholesky.default cholesky_inverse.default cholesky_solve.default clamp.Tensor clamp.default
    clamp_max.Tensor clamp_max.default clamp_min.Tensor clamp_min.default clone.default
    col2im.default complex.default constant_pad_nd.default conv2d.default convolution.default
    copysign.Scalar copysign.Tensor cos.default cosh.default count_nonzero.default
    count_nonzero.dim_IntList cummax.default cummin.default cumprod.default cumsum.default
    deg2rad.default detach.default diag_embed.default diagonal.default diagonal_copy.default
    diagonal_scatter.default digamma.default dist.default div.Scalar div.Scalar_mode div.Tensor
    div.Tensor_mode dot.default elu.default embedding.default eq.Scalar eq.Tensor erf.default
    erfc.default erfinv.default exp.default exp2.default expand.default expand_copy.default
    expm1.default eye.default eye.m feature_dropout.default fill.Scalar flip.default
    floor.default floor_divide.Scalar floor_divide.default fmax.default fmin.default fmod.Scalar
    fmod.Tensor frac.default frexp.Tensor full.default full_like.default gather.default
    gcd.default ge.Scalar ge.Tensor gelu.default geqrf.default glu.default
    grid_sampler_2d.default grid_sampler_3d.default gt.Scalar gt.Tensor hardshrink.default
    hardsigmoid.default hardswish.default hardtanh.default hash_tensor.default heaviside.default
    histc.default histogram.bin_ct histogram.bins_tensor huber_loss.default hypot.default
    i0.default igamma.default igammac.default im2col.default index.Tensor index_add.default
    index_copy.default index_fill.int_Scalar index_fill.int_Tensor index_put.default
    index_reduce.default index_select.default isin.Tensor_Tensor isinf.default isnan.default
    isneginf.default isposinf.default kthvalue.default layer_norm.default ldexp.Tensor le.Scalar
    le.Tensor leaky_relu.default lerp.Scalar lerp.Tensor lgamma.default lift_fresh.default
    linalg_cholesky_ex.default linalg_cross.default linalg_eig.default
    linalg_householder_product.default linalg_inv_ex.default linalg_ldl_factor_ex.default
    linalg_lstsq.default linalg_lu.default linalg_lu_factor_ex.default linalg_matrix_exp.default
    linalg_pinv.atol_rtol_tensor linalg_qr.default linalg_solve_triangular.default
    linalg_vector_norm.default linear.default linspace.Scalar_Tensor linspace.Tensor_Scalar
    linspace.Tensor_Tensor linspace.default log.default log10.default log1p.default log2.default
    log_sigmoid_forward.default logaddexp.default logaddexp2.default logcumsumexp.default
    logical_and.default logical_not.default logical_or.default logical_xor.default logit.default
    logit_backward.default logspace.Scalar_Tensor logspace.Tensor_Scalar logspace.Tensor_Tensor
    logspace.default logsumexp.default lt.Scalar lt.Tensor masked_fill.Scalar masked_fill.Tensor
    masked_scatter.default masked_select.default matmul.default max.default max.dim
    max_pool2d_with_indices.default max_pool3d_with_indices.default max_unpool2d.default
    max_unpool3d.default maximum.default mean.default mean.dim min.default min.dim
    minimum.default mish.default mm.default mode.default mse_loss.default mul.Scalar mul.Tensor
    multi_margin_loss.default multilabel_margin_loss_forward.default multinomial.default
    mv.default mvlgamma.default nan_to_num.default nansum.default narrow_copy.default
    native_dropout.default native_dropout_backward.default native_group_norm.default
    native_layer_norm.default ne.Scalar ne.Tensor neg.default new_full.default new_ones.default
    new_zeros.default nextafter.default nll_loss2d_forward.default nll_loss_forward.default
    nonzero.default nonzero_static.default norm.ScalarOpt_dim normal.Tensor_Tensor
    normal.Tensor_float normal.float_float ones.default ones_like.default ormqr.default
    permute.default permute_copy.default pixel_shuffle.default pixel_unshuffle.default
    polar.default pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor prod.default prod.dim_int
    put.default rad2deg.default rand.default rand_like.default randint.default randint.low
    randint_like.default randint_like.low_dtype randn.default randn_like.default
    randperm.default reciprocal.default reflection_pad1d.default reflection_pad2d.default
    reflection_pad3d.default relu.default remainder.Scalar remainder.Scalar_Tensor
    remainder.Tensor renorm.default repeat.default replication_pad1d.default
    replication_pad2d.default replication_pad3d.default reshape.default rms_norm.default
    roll.default rot90.default round.decimals round.default rsqrt.default rsub.Scalar
    rsub.Tensor scalar_tensor.default scatter.reduce scatter.src scatter.value
    scatter_add.default scatter_reduce.two searchsorted.Tensor select.int select_scatter.default
    sgn.default sigmoid.default sigmoid_backward.default sign.default signbit.default
    silu.default silu_backward.default sin.default sinc.default sinh.default slice.Tensor
    smooth_l1_loss.default soft_margin_loss.default softmax.int softplus.default
    softshrink.default sort.default sort.stable special_airy_ai.default
    special_bessel_j0.default special_bessel_j1.default special_bessel_y0.default
    special_bessel_y1.default special_entr.default special_erfcx.default
    special_hermite_polynomial_h.default special_hermite_polynomial_he.default
    special_i0e.default special_i1.default special_i1e.default special_log_ndtr.default
    special_modified_bessel_i0.default special_modified_bessel_i1.default
    special_modified_bessel_k0.default special_modified_bessel_k1.default special_ndtri.default
    special_scaled_modified_bessel_k0.default special_scaled_modified_bessel_k1.default
    special_spherical_bessel_j0.default special_xlog1py.default split.Tensor split.sizes
    split_with_sizes.default split_with_sizes_copy.default sqrt.default squeeze.default
    squeeze.dim squeeze.dims squeeze_copy.default squeeze_copy.dim stack.default std.correction
    std_mean.correction sub.Scalar sub.Tensor sum.default sum.dim_IntList t.default
    t_copy.default take.default tan.default tanh.default tanh_backward.default threshold.default
    threshold_backward.default topk.default trace.default transpose.int transpose_copy.int
    triangular_solve.default tril.default tril_indices.default triu.default triu_indices.default
    trunc.default unbind.int unbind_copy.int unfold.default unfold_copy.default
    unique_consecutive.default unsafe_split.Tensor unsqueeze.default unsqueeze_copy.default
    upsample_bicubic2d.default upsample_bicubic2d.vec upsample_bilinear2d.default
    upsample_bilinear2d.vec upsample_linear1d.default upsample_linear1d.vec
    upsample_nearest1d.default upsample_nearest1d.vec upsample_nearest2d.default
    upsample_nearest2d.vec upsample_nearest3d.default upsample_nearest3d.vec
    upsample_trilinear3d.default upsample_trilinear3d.vec var.correction var_mean.correction
    vdot.default view.default view.dtype view_as_complex.default view_as_real.default
    view_copy.default where.Scalar where.ScalarOther where.ScalarSelf where.self xlogy.Tensor
    zeros.default zeros_like.default
"""
LISTED = frozenset(f"aten.{name}" for name in _NAMES.split())


def unlisted(ops: Iterable[str]) -> list[str]:
    """Those of some operators that only a trusted file may call."""
    return sorted(set(ops) - LISTED)


def require_listed(ops: Iterable[str]) -> None:
    """Refuse operators that only a trusted file may call, by name."""
    refused = unlisted(ops)
    if refused:
        names = ", ".join(name[:100] for name in refused[:_SHOWN])
        more = f" and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        raise UntrustedArtifact(
            f"the artifact calls {names}{more}, which an untrusted file may not: these operators "
            f"do not check all of their arguments, or are not PyTorch's own; {HOW_TO_TRUST}"
        )
