"""The price of one operation: tables from an operation's name to a formula in its shapes.

`PRODUCTS` holds matrix products, where a multiply-add counts 2. `WORK` holds pointwise work: an
elementwise function counts 1 per element of its output whatever the function is, a reduction 1 per
element of its input, and compound operations are written out. `MOVES` names the operations that
move or make data without arithmetic. An operation that is in no table, and that torch itself tags
neither pointwise nor reduction, has no formula, and the report lists it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Size = Any  # an int, or a sympy expression


class Shape(tuple[Size, ...]):
    """The shape of a tensor; a class of its own tells it from a plain tuple of numbers."""


@dataclass(frozen=True)
class Operation:
    """One call of an operation, reduced to what its cost depends on."""

    name: str  # such as aten.mm
    args: tuple[Any, ...]  # a Shape per tensor; constants as they are
    outs: tuple[Shape, ...]
    floating: bool  # whether some operand or result holds floats
    kind: str = ""  # "pointwise" or "reduction", where torch tags it so; attention may be CAUSAL
    flops: Size = None  # from a formula that was registered with torch's own counter


def products(op: Operation) -> Size:
    """Return the FLOPs that an operation spends in matrix products."""
    if op.flops is not None:
        return op.flops
    formula = PRODUCTS.get(op.name)
    return formula(op) if formula else 0


def pointwise(op: Operation) -> Size:
    """Return the FLOPs that an operation spends outside matrix products."""
    if not op.floating:
        return 0
    formula = WORK.get(op.name)
    if formula:
        return formula(op)
    if op.kind == "pointwise":
        return PER_ELEMENT.get(op.name, 1) * count(op.outs[0]) if op.outs else 0
    return count(first(op)) if op.kind == "reduction" else 0


def count(shape: Shape) -> Size:
    """Return the number of elements in a tensor of this shape."""
    return math.prod(shape)


def first(op: Operation) -> Shape:
    """Return the shape of the operation's first operand."""
    return next((arg for arg in _flat(op.args) if isinstance(arg, Shape)), Shape())


def _flat(args: tuple[Any, ...]) -> list[Any]:
    leaves = []
    for arg in args:
        nested = isinstance(arg, tuple) and not isinstance(arg, Shape)
        leaves += _flat(arg) if nested else [arg]
    return leaves


def _product(place: int = 0) -> Callable[[Operation], Size]:
    """Return the formula of a product that sums over the last axis of the operand at `place`."""
    return lambda op: 2 * count(op.outs[0]) * op.args[place][-1]


def _grouped(op: Operation) -> Size:
    """Return the FLOPs of a grouped product: each group of rows or columns meets its own matrix."""
    a, b = op.args[0], op.args[1]
    if len(a) == 2 and len(b) == 2:  # both sides are grouped along what is summed over
        return 2 * a[0] * a[1] * b[1]
    return 2 * count(op.outs[0]) * (a[-1] if len(a) == 3 or len(b) == 3 else 1)


def _grouped_weight(op: Operation) -> Size:
    """Return the FLOPs of a grouped product whose weight is stored either way round."""
    return 2 * count(op.args[0]) * op.outs[0][-1]


def _trilinear(op: Operation) -> tuple[Size, Size]:
    """Return what a product of three tensors costs, in matrix products and outside them.

    The first two meet, then the third, once for every place of the unrolled axis. Where nothing is
    summed over, they are multiplied number by number.
    """
    args: list[Any] = [*op.args, 1]  # the unrolled axis, where none is given
    absent, summed, unrolled = args[3:6], {*args[6]}, args[7]
    rank = len(args[0]) + len(absent[0])
    a, b, c = (_placed(*pair, rank) for pair in zip(args[:3], absent, strict=True))
    times = _broadcast(_broadcast(a, b), c)[unrolled]
    for shape in (a, b, c):
        shape[unrolled] = 1
    first, both = summed & {*absent[2]} - {unrolled}, _broadcast(a, b)
    left = [1 if axis in first else size for axis, size in enumerate(both)]
    multiplied, added = 0, count(op.outs[0]) * (times if unrolled in summed else 1)
    flops = 0
    for axes, shape in ((first, both), (summed - first - {unrolled}, _broadcast(left, c))):
        size = times * math.prod(shape)
        flops, multiplied = (flops + 2 * size, multiplied) if axes else (flops, multiplied + size)
    return flops, multiplied + added


def _placed(shape: Shape, absent: tuple[int, ...], rank: int) -> list[Size]:
    """Return a shape with axes of 1 put where the tensor has none."""
    sizes = iter(shape)
    return [1 if axis in absent else next(sizes) for axis in range(rank)]


def _broadcast(a: list[Size], b: list[Size]) -> list[Size]:
    return [m if n == 1 else n for m, n in zip(a, b, strict=True)]


def _distances(op: Operation) -> Size:
    """Return the FLOPs of the product in distances: of the points, and of their squares with 1."""
    return 2 * count(op.outs[0]) * (op.args[0][-1] + 2)


def _convolution(op: Operation) -> Size:
    x, weight = op.args[0], op.args[1]
    places = x if op.args[6] else op.outs[0]
    return 2 * count(places) * count(Shape(weight[1:]))


def _convolution_backward(op: Operation) -> Size:
    gradient, x, weight, mask = op.args[0], op.args[1], op.args[2], op.args[10]
    places = x if op.args[7] else gradient
    return 2 * count(places) * count(Shape(weight[1:])) * (bool(mask[0]) + bool(mask[1]))


def scores(q: Shape, k: Shape) -> Size:
    """Return the number of query-key pairs over all batches and heads of the queries."""
    return count(Shape(q[:-1])) * k[-2]


def _fused(op: Operation) -> Size:
    q, k, v = op.args[:3]
    return 2 * scores(q, k) * (q[-1] + v[-1])


def _fused_backward(op: Operation) -> Size:
    q, k, v = op.args[-3:] if op.name == FUSED_BACKWARD else op.args[1:4]
    # The scores once more; then the gradients of q and k, and of the weights and v.
    return 2 * scores(q, k) * (3 * q[-1] + 2 * v[-1])


CAUSAL = "causal"
FUSED, FUSED_BACKWARD = "querykey.fused_attention", "querykey.fused_attention_backward"

PRODUCTS: dict[str, Callable[[Operation], Size]] = {
    "aten.mm": _product(),
    "aten.bmm": _product(),
    "aten.mv": _product(),
    "aten.dot": lambda op: 2 * op.args[0][0],
    "aten.vdot": lambda op: 2 * op.args[0][0],
    "aten.addmm": _product(1),
    "aten._addmm_activation": _product(1),
    "aten.addmv": _product(1),
    "aten.baddbmm": _product(1),
    "aten.addbmm": lambda op: 2 * count(op.args[1]) * op.args[2][-1],
    "aten._int_mm": _product(),
    "aten._scaled_mm": _product(),
    "aten._grouped_mm": _grouped,
    "transformers.grouped_mm_fallback": _grouped_weight,
    "aten._trilinear": lambda op: _trilinear(op)[0],
    "aten._euclidean_dist": _distances,
    "aten.convolution": _convolution,
    "aten._convolution": _convolution,
    "aten.convolution_backward": _convolution_backward,
    FUSED: _fused,
    FUSED_BACKWARD: _fused_backward,
    "aten._scaled_dot_product_flash_attention": _fused,
    "aten._scaled_dot_product_flash_attention_for_cpu": _fused,
    "aten._scaled_dot_product_efficient_attention": _fused,
    "aten._scaled_dot_product_cudnn_attention": _fused,
    "aten._scaled_dot_product_flash_attention_backward": _fused_backward,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _fused_backward,
    "aten._scaled_dot_product_efficient_attention_backward": _fused_backward,
    "aten._scaled_dot_product_cudnn_attention_backward": _fused_backward,
}


def _per_input(times: int, place: int = 0) -> Callable[[Operation], Size]:
    return lambda op: times * count([a for a in op.args if isinstance(a, Shape)][place])


def _per_output(times: int) -> Callable[[Operation], Size]:
    return lambda op: times * count(op.outs[0])


def _bias(op: Operation) -> Size:
    return count(op.outs[0]) if isinstance(op.args[2], Shape) else 0


def _norm(plain: int, weight: int) -> Callable[[Operation], Size]:
    """Return the formula of a norm: `plain` per element, 1 more each for a weight and a bias."""

    def work(op: Operation) -> Size:
        affine = sum(isinstance(arg, Shape) for arg in op.args[weight : weight + 2])
        return (plain + affine) * count(first(op))

    return work


def _training(op: Operation) -> bool:
    """Return whether a batch norm takes its statistics from the batch; its only flag says so."""
    return next((arg for arg in op.args if isinstance(arg, bool)), True)


def _batch_norm(op: Operation) -> Size:
    return _norm(6 if _training(op) else 2, 1)(op)


def _batch_norm_backward(op: Operation) -> Size:
    # With fixed statistics: two factors for x; x again, a product and two sums for the weights.
    return (11 if _training(op) else 7) * count(first(op))


def _pool(op: Operation) -> Size:
    window = op.args[1] or (1,)
    return count(op.outs[0]) * math.prod(window)


_UNTAGGED = """
    softplus_backward floor_divide floor_divide_ threshold_backward hardtanh_backward prelu
    _prelu_kernel polar log_sigmoid_forward log_sigmoid_backward elu_backward angle logit_backward
    leaky_relu_backward hardswish_backward silu_backward mish_backward gelu_backward masked_fill_
    masked_fill sigmoid_backward tanh_backward hardsigmoid_backward rrelu_with_noise
    rrelu_with_noise_backward softshrink_backward
"""


def _fused_softmax(op: Operation) -> Size:
    return 6 * scores(op.args[0], op.args[1])  # scale, and the softmax below


WORK: dict[str, Callable[[Operation], Size]] = {
    # max, subtract, exp, sum, divide (or subtract the log)
    "aten._softmax": _per_output(5),
    "aten._safe_softmax": _per_output(5),
    "aten._log_softmax": _per_output(5),
    "aten.logsumexp": _per_input(4),
    "aten._softmax_backward_data": _per_output(4),
    "aten._log_softmax_backward_data": _per_output(4),
    FUSED: _fused_softmax,
    FUSED_BACKWARD: lambda op: 7 * scores(op.args[-3], op.args[-2]),
    # mean, variance (3), subtract, divide
    "aten.native_layer_norm": _norm(6, 2),
    "aten.native_group_norm": _norm(6, 1),
    "aten.native_batch_norm": _batch_norm,
    "aten._native_batch_norm_legit": _batch_norm,
    "aten._batch_norm_with_update": _norm(6, 1),
    "aten._batch_norm_no_update": _norm(2, 1),
    "aten.cudnn_batch_norm": _batch_norm,
    "aten._fused_rms_norm": _norm(3, 2),
    "aten.native_layer_norm_backward": _per_input(11),
    "aten.native_group_norm_backward": _per_input(11),
    "aten.native_batch_norm_backward": _batch_norm_backward,
    "aten.batch_norm_backward": _per_input(11),
    "aten._fused_rms_norm_backward": _per_input(8),
    "aten.mean": lambda op: count(first(op)) + count(op.outs[0]),
    "aten.var": _per_input(4),
    "aten.std": _per_input(4),
    "aten.var_mean": _per_input(4),
    "aten.std_mean": _per_input(4),
    "aten.linalg_vector_norm": _per_input(2),
    "aten.norm": _per_input(2),
    "aten.cumsum": _per_output(1),
    "aten.cumprod": _per_output(1),
    "aten.cummax": _per_output(1),
    "aten.logcumsumexp": _per_output(4),
    "aten.addmm": _per_output(1),
    "aten._addmm_activation": _per_output(2),
    "aten.baddbmm": _per_output(1),
    "aten.addmv": _per_output(1),
    "aten.convolution": _bias,
    "aten.convolution_backward": lambda op: count(op.args[0]) if op.args[10][2] else 0,
    "aten.embedding_dense_backward": _per_input(1),
    "aten.index_add": _per_input(1, 2),
    "aten.index_add_": _per_input(1, 2),
    "aten.scatter_add": _per_input(1, 2),
    "aten.scatter_add_": _per_input(1, 2),
    "aten.scatter_reduce": _per_input(1, 2),
    "aten.col2im": _per_input(1),
    # a weighted sum of 2, 4, 8 or 16 neighbours; its gradient adds to each of them
    "aten.upsample_linear1d": _per_output(3),
    "aten.upsample_bilinear2d": _per_output(7),
    "aten._upsample_bilinear2d_aa": _per_output(7),
    "aten.upsample_trilinear3d": _per_output(15),
    "aten.upsample_bicubic2d": _per_output(31),
    "aten._upsample_bicubic2d_aa": _per_output(31),
    "aten.upsample_linear1d_backward": _per_input(4),
    "aten.upsample_bilinear2d_backward": _per_input(8),
    "aten._upsample_bilinear2d_aa_backward": _per_input(8),
    "aten.upsample_trilinear3d_backward": _per_input(16),
    "aten.upsample_bicubic2d_backward": _per_input(32),
    "aten._upsample_bicubic2d_aa_backward": _per_input(32),
    "aten.upsample_nearest1d_backward": _per_input(1),
    "aten.upsample_nearest2d_backward": _per_input(1),
    "aten.upsample_nearest3d_backward": _per_input(1),
    # the norm (2), and a factor per row
    "aten._weight_norm_interface": _per_input(3),
    "aten._weight_norm_interface_backward": _per_input(5),
    "aten._embedding_bag": lambda op: count(op.args[1]) * op.args[0][-1],
    "aten._embedding_bag_forward_only": lambda op: count(op.args[1]) * op.args[0][-1],
    "aten._embedding_bag_backward": lambda op: count(op.args[1]) * op.args[0][-1],
    "aten._embedding_bag_dense_backward": lambda op: count(op.args[1]) * op.args[0][-1],
    "aten.native_dropout": _per_output(2),
    "aten.native_dropout_backward": _per_output(2),
    "aten.avg_pool1d": _pool,
    "aten.avg_pool2d": _pool,
    "aten.avg_pool3d": _pool,
    "aten.max_pool2d_with_indices": _pool,
    "aten.max_pool3d_with_indices": _pool,
    "aten.avg_pool2d_backward": _per_input(1, 1),
    "aten.avg_pool3d_backward": _per_input(1, 1),
    "aten.max_pool2d_with_indices_backward": _per_input(1),
    "aten.max_pool3d_with_indices_backward": _per_input(1),
    "aten._adaptive_avg_pool2d": _per_input(1),
    "aten._adaptive_avg_pool2d_backward": _per_output(1),
    "aten._adaptive_avg_pool3d": _per_input(1),
    "aten._adaptive_avg_pool3d_backward": _per_output(1),
    "aten.adaptive_max_pool2d": _per_input(1),
    "aten.adaptive_max_pool3d": _per_input(1),
    "aten.adaptive_max_pool2d_backward": _per_input(1),
    "aten.adaptive_max_pool3d_backward": _per_input(1),
    # every number of the padded tensor is added to the one that it repeats
    **{
        f"aten.{kind}_pad{axes}d_backward": _per_input(1)
        for kind in ("reflection", "replication")
        for axes in (1, 2, 3)
    },
    "aten.nll_loss_forward": _per_input(1, 1),
    "aten.nll_loss_backward": _per_input(1, 2),
    "aten.nll_loss2d_forward": _per_input(1, 1),
    "aten.nll_loss2d_backward": _per_input(1, 2),
    # 1 less the target, a product, the log of a sigmoid and a difference; and their sum
    "aten.binary_cross_entropy_with_logits": _per_input(5),
    "aten._prelu_kernel_backward": lambda op: 2 * count(op.outs[0]),
    "aten.linalg_cross": _per_output(3),
    "aten.trace": lambda op: op.args[0][0],
    "aten.glu": _per_output(2),
    "aten.glu_backward": _per_output(4),
    "aten._trilinear": lambda op: _trilinear(op)[1],
    # a square and a sum of all numbers, -2 times those on the left; the root, of at least 0
    "aten._euclidean_dist": lambda op: (
        3 * count(op.args[0]) + 2 * count(op.args[1]) + 2 * count(op.outs[0])
    ),
    "aten._cdist_forward": lambda op: 3 * count(op.outs[0]) * op.args[0][-1],
    # for each pair a quotient, and for each number of it a difference, a product and a sum
    "aten._cdist_backward": lambda op: count(op.args[0]) * (3 * op.args[1][-1] + 1),
    # elementwise, though torch does not tag them so
    **{f"aten.{name}": _per_output(1) for name in _UNTAGGED.split()},
}

PER_ELEMENT = dict.fromkeys(
    (f"aten.{name}" for name in ("addcmul", "addcmul_", "addcdiv", "addcdiv_", "lerp")), 3
)

_MOVES = """
    im2col
    _to_copy alias arange argsort bernoulli bernoulli_ bincount bucketize cat clone
    constant_pad_nd copy copy_ detach detach_ diag_embed diagonal_backward embedding empty
    empty_like empty_strided empty_permuted equal expand_copy eye fill fill_ flip full full_like
    gather histc index index_copy index_copy_ index_fill index_fill_ index_put index_put_
    _index_put_impl_ _unsafe_index _unsafe_index_put index_select is_same_size isin item
    kthvalue lift lift_fresh lift_fresh_copy linspace _local_scalar_dense logspace
    masked_scatter masked_scatter_ masked_select masked_scatter_backward max_unpool2d
    multinomial new_empty new_empty_strided new_full new_ones new_zeros nonzero nonzero_static
    normal normal_ one_hot ones ones_like permute_copy rand rand_like randint randint_like randn
    randn_like random random_ randperm reflection_pad1d reflection_pad2d reflection_pad3d repeat
    replication_pad1d replication_pad2d replication_pad3d pixel_shuffle pixel_unshuffle
    channel_shuffle native_channel_shuffle median nanmedian mode take put
    repeat_interleave resize_ roll rot90 scalar_tensor
    scatter scatter_ searchsorted select_backward select_scatter set_ slice_backward
    slice_scatter sort split_with_sizes_copy unsafe_split unsafe_split_with_sizes unsafe_chunk
    stack sym_numel sym_size sym_stride sym_storage_offset sym_is_contiguous topk tril tril_
    tril_indices triu triu_ triu_indices unfold_backward uniform uniform_ unique2 _unique2
    unique_consecutive unique_dim unsqueeze_ squeeze_ t_ transpose_ _reshape_alias _unsafe_view
    view_copy zero zero_ zeros zeros_like value_selecting_reduction_backward _resize_output_
    as_strided_ as_strided_scatter view_as_real _assert_async _assert_scalar
    _functional_assert_async complex real imag view_as_complex exponential_ geometric_ cauchy_
    log_normal_ size stride numel upsample_nearest1d upsample_nearest2d upsample_nearest3d
"""

# Operations that make, copy, compare or select data, or draw random numbers.
MOVES = frozenset(f"aten.{name}" for name in _MOVES.split())
