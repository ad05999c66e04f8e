"""Every row of the tables of formulas, held by a count by hand of one call of its operation."""

import pytest
import torch
from tests.costs import by_hand
from torch import nn

from querykey.costs.counting import operations
from querykey.costs.counting.fused_attention import fused
from querykey.costs.counting.operations import Shape
from querykey.costs.counting.trace import Trace, describe


def floats(*shape):
    return torch.empty(shape, device="meta")


def ints(*shape):
    return torch.empty(shape, device="meta", dtype=torch.long)


# What goes in is at the left. On the right: FLOPs in products, a multiply-add being 2.
LEFT, RIGHT = floats(3, 5), floats(5, 7)
MANY_LEFT, MANY_RIGHT = floats(2, 3, 5), floats(2, 5, 7)
IMAGE, KERNEL = floats(2, 4, 9, 9), floats(6, 4, 3, 3)
ONES, ZEROS = [1, 1], [0, 0]
CONVOLVED = by_hand.loop_convolution(2, 4, 6, 9, 3, stride=1, padding=0, groups=1)
TURNED = 2 * (2 * 6 * 7 * 7) * 4 * 9  # every input number meets 9 taps for each of 4 channels
PRODUCTS = {
    "mm": ((LEFT, RIGHT), by_hand.loop_product(3, 5, 7)),
    "bmm": ((MANY_LEFT, MANY_RIGHT), 2 * by_hand.loop_product(3, 5, 7)),
    "mv": ((LEFT, floats(5)), by_hand.loop_product(3, 5, 1)),
    "dot": ((floats(5), floats(5)), by_hand.loop_product(1, 5, 1)),
    "vdot": ((floats(5), floats(5)), by_hand.loop_product(1, 5, 1)),
    "addmm": ((floats(7), LEFT, RIGHT), by_hand.loop_product(3, 5, 7)),
    "_addmm_activation": ((floats(7), LEFT, RIGHT), by_hand.loop_product(3, 5, 7)),
    "addmv": ((floats(3), LEFT, floats(5)), by_hand.loop_product(3, 5, 1)),
    "baddbmm": ((floats(2, 3, 7), MANY_LEFT, MANY_RIGHT), 2 * by_hand.loop_product(3, 5, 7)),
    "addbmm": ((floats(3, 7), MANY_LEFT, MANY_RIGHT), 2 * by_hand.loop_product(3, 5, 7)),
    # 4 x 6 pairs of points with 5 coordinates, their squares and a 1
    "_euclidean_dist": ((floats(4, 5), floats(6, 5)), by_hand.loop_product(4, 7, 6)),
    # 3 numbers, (7, 3, 4) weights, 4 numbers: 7 products of a matrix and then of a row, for 2 rows
    "_trilinear": (
        (floats(2, 3), floats(7, 3, 4), floats(2, 4), [1, 3], [0], [1, 2], [2, 3]),
        7 * (by_hand.loop_product(2, 3, 4) + 2 * by_hand.loop_product(1, 4, 1)),
    ),
    # the gradient of the weights: a number, 4 and 3 numbers; nothing but the rows is summed over
    "_trilinear of the weights": (
        (floats(2, 7), floats(2, 4), floats(2, 3), [2, 3], [1, 2], [1, 3], [0]),
        7 * by_hand.loop_product(4, 2, 3),
    ),
    "convolution": ((IMAGE, KERNEL, None, ONES, ZEROS, ONES, False, ZEROS, 1), CONVOLVED),
    "convolution transposed": (
        (floats(2, 6, 7, 7), KERNEL, None, ONES, ZEROS, ONES, True, ZEROS, 1),
        TURNED,
    ),
    "convolution_backward": (
        (
            floats(2, 6, 7, 7), IMAGE, KERNEL, [6], ONES, ZEROS, ONES, False, ZEROS, 1,
            [True, True, False],
        ),
        2 * CONVOLVED,
    ),
    "convolution_backward for the weight alone": (
        (
            floats(2, 6, 7, 7), IMAGE, KERNEL, [6], ONES, ZEROS, ONES, False, ZEROS, 1,
            [False, True, False],
        ),
        CONVOLVED,
    ),
}  # fmt: skip

# The same where torch runs the operation on a GPU alone: shapes in and out.
Q, K, V, MIXED = (2, 3, 7, 4), (2, 3, 11, 4), (2, 3, 11, 6), (2, 3, 7, 6)
SCORES, VALUES = 6 * by_hand.loop_product(7, 4, 11), 6 * by_hand.loop_product(7, 11, 6)
BACK = 3 * SCORES + 2 * VALUES  # the scores again; q and k; the weights and v
KERNELS = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
FUSED = [f"_scaled_dot_product_{kernel}" for kernel in KERNELS]
GIVEN_SHAPES = {
    "_convolution": (
        ((2, 4, 9, 9), (6, 4, 3, 3), None, ONES, ZEROS, ONES, False, ZEROS, 1),
        (2, 6, 7, 7),
        CONVOLVED,
    ),
    "_int_mm": (((3, 5), (5, 7)), (3, 7), by_hand.loop_product(3, 5, 7)),
    "_scaled_mm": (((3, 5), (5, 7)), (3, 7), by_hand.loop_product(3, 5, 7)),
    # rows in groups; groups of matrices; columns in groups; what is summed over in groups
    "_grouped_mm": (((13, 5), (2, 5, 7), (2,)), (13, 7), by_hand.loop_product(13, 5, 7)),
    "_grouped_mm twice": (((2, 3, 5), (2, 5, 7)), (2, 3, 7), 2 * by_hand.loop_product(3, 5, 7)),
    "_grouped_mm right": (((2, 3, 5), (5, 7), (2,)), (3, 7), by_hand.loop_product(3, 5, 7)),
    "_grouped_mm inner": (((3, 5), (5, 7), (2,)), (2, 3, 7), by_hand.loop_product(3, 5, 7)),
    **dict.fromkeys(FUSED, ((Q, K, V), MIXED, SCORES + VALUES)),
    **{f"{name}_backward": ((MIXED, Q, K, V), Q, BACK) for name in FUSED},
}

# FLOPs outside products. 15 numbers in 3 rows and 5 columns, 3 of a row's kind, 5 of a column's.
X = floats(3, 5)
CHANNELS = floats(2, 6, 4)  # 48 numbers
LINE, PLANE, SPACE = floats(2, 3, 4), floats(2, 3, 8, 6), floats(2, 3, 4, 6, 5)
SIX, THREE = [floats(6) for _ in range(4)], [True] * 3
FLAT_WINDOWS, DEEP_WINDOWS = 2 * 3 * 4 * 2, 2 * 3 * 2 * 2 * 1  # how many windows there are
WORK = {
    # max, subtract, exp, sum, divide: 5 per number
    "_softmax": ((X, -1, False), 5 * 15),
    "_safe_softmax": ((X, -1), 5 * 15),
    "_log_softmax": ((X, -1, False), 5 * 15),
    "logsumexp": ((X, [1]), 4 * 15),
    # a product, its sum, a subtraction, a product
    "_softmax_backward_data": ((X, X, -1, torch.float32), 4 * 15),
    "_log_softmax_backward_data": ((X, X, -1, torch.float32), 4 * 15),
    # the mean 1, the variance 3, subtract, divide; and weight and bias
    "native_layer_norm": ((X, [5], floats(5), floats(5), 1e-5), 8 * 15),
    "native_layer_norm without a bias": ((X, [5], floats(5), None, 1e-5), 7 * 15),
    "native_layer_norm alone": ((X, [5], None, None, 1e-5), 6 * 15),
    "native_group_norm": ((CHANNELS, *SIX[:2], 2, 6, 4, 3, 1e-5), 8 * 48),
    "native_group_norm alone": ((CHANNELS, None, None, 2, 6, 4, 3, 1e-5), 6 * 48),
    "native_batch_norm": ((CHANNELS, *SIX, True, 0.1, 1e-5), 8 * 48),
    "native_batch_norm with fixed statistics": ((CHANNELS, *SIX, False, 0.1, 1e-5), 4 * 48),
    "_native_batch_norm_legit": ((CHANNELS, *SIX, True, 0.1, 1e-5), 8 * 48),
    "_batch_norm_with_update": ((CHANNELS, *SIX, 0.1, 1e-5), 8 * 48),
    "_batch_norm_no_update": ((CHANNELS, *SIX, 0.1, 1e-5), 4 * 48),
    "cudnn_batch_norm": ((CHANNELS, *SIX, True, 0.1, 1e-5), 8 * 48),
    "native_layer_norm_backward": (
        (X, X, [5], floats(3, 1), floats(3, 1), floats(5), floats(5), THREE),
        11 * 15,
    ),
    "native_group_norm_backward": (
        (CHANNELS, CHANNELS, floats(2, 3), floats(2, 3), floats(6), 2, 6, 4, 3, THREE),
        11 * 48,
    ),
    "native_batch_norm_backward": (
        (CHANNELS, CHANNELS, *SIX[:3], *SIX[:2], True, 1e-5, THREE),
        11 * 48,
    ),
    "native_batch_norm_backward with fixed statistics": (
        (CHANNELS, CHANNELS, *SIX[:3], *SIX[:2], False, 1e-5, THREE),
        7 * 48,
    ),
    "batch_norm_backward": (
        (CHANNELS, CHANNELS, *SIX[:3], *SIX[:2], True, 1e-5, THREE, floats(0)),
        11 * 48,
    ),
    "_fused_rms_norm_backward": ((X, X, [5], floats(3, 1), floats(5), [True, True]), 8 * 15),
    "mean": ((X, [1]), 15 + 3),
    "var": ((X, [1]), 4 * 15),
    "std": ((X, [1]), 4 * 15),
    "var_mean": ((X, [1]), 4 * 15),
    "std_mean": ((X, [1]), 4 * 15),
    "linalg_vector_norm": ((X, 2, [1]), 2 * 15),
    "norm": ((X, 2, [1]), 2 * 15),
    "cumsum": ((X, 0), 15),
    "cumprod": ((X, 0), 15),
    "cummax": ((X, 0), 15),
    "logcumsumexp": ((X, 0), 4 * 15),
    # what is added to a product, and a function of it
    "addmm": ((floats(7), LEFT, RIGHT), 21),
    "_addmm_activation": ((floats(7), LEFT, RIGHT), 2 * 21),
    "baddbmm": ((floats(2, 3, 7), MANY_LEFT, MANY_RIGHT), 2 * 21),
    "addmv": ((floats(3), LEFT, floats(5)), 3),
    "convolution": ((IMAGE, KERNEL, floats(6), ONES, ZEROS, ONES, False, ZEROS, 1), 2 * 6 * 49),
    "convolution without a bias": (
        (IMAGE, KERNEL, None, ONES, ZEROS, ONES, False, ZEROS, 1),
        0,
    ),
    "convolution_backward": (
        (
            floats(2, 6, 7, 7), IMAGE, KERNEL, [6], ONES, ZEROS, ONES, False, ZEROS, 1, THREE,
        ),
        2 * 6 * 49,
    ),
    # one addition for every number that is put somewhere
    "embedding_dense_backward": ((floats(7, 5), ints(7), 11, -1, False), 35),
    "index_add": ((floats(7, 5), 0, ints(3), X), 15),
    "index_add_": ((floats(7, 5), 0, ints(3), X), 15),
    "scatter_add": ((floats(7, 5), 0, ints(3, 5), X), 15),
    "scatter_add_": ((floats(7, 5), 0, ints(3, 5), X), 15),
    "scatter_reduce": ((floats(7, 5), 0, ints(3, 5), X, "sum"), 15),
    "col2im": ((floats(1, 12, 4), [4, 4], [2, 2], ONES, ZEROS, [2, 2]), 48),
    # a weighted sum of n neighbours: n products and n - 1 additions
    "upsample_linear1d": ((LINE, [7], False), 3 * 2 * 3 * 7),
    "upsample_bilinear2d": ((PLANE, [9, 11], False), 7 * 2 * 3 * 9 * 11),
    "_upsample_bilinear2d_aa": ((PLANE, [9, 11], False), 7 * 2 * 3 * 9 * 11),
    "upsample_trilinear3d": ((SPACE, [5, 7, 9], False), 15 * 2 * 3 * 5 * 7 * 9),
    "upsample_bicubic2d": ((PLANE, [9, 11], False), 31 * 2 * 3 * 9 * 11),
    "_upsample_bicubic2d_aa": ((PLANE, [9, 11], False), 31 * 2 * 3 * 9 * 11),
    "upsample_linear1d_backward": ((floats(2, 3, 7), [7], [2, 3, 4], False), 4 * 42),
    **{
        name: ((floats(2, 3, 9, 11), [9, 11], [2, 3, 8, 6], False), times * 594)
        for name, times in (
            ("upsample_bilinear2d_backward", 8), ("_upsample_bilinear2d_aa_backward", 8),
            ("upsample_bicubic2d_backward", 32), ("_upsample_bicubic2d_aa_backward", 32),
        )
    },
    "upsample_trilinear3d_backward": (
        (floats(2, 3, 5, 7, 9), [5, 7, 9], [2, 3, 4, 6, 5], False),
        16 * 1890,
    ),
    "upsample_nearest1d_backward": ((floats(2, 3, 7), [7], [2, 3, 4]), 42),
    "upsample_nearest2d_backward": ((floats(2, 3, 9, 11), [9, 11], [2, 3, 8, 6]), 594),
    "upsample_nearest3d_backward": ((floats(2, 3, 5, 7, 9), [5, 7, 9], [2, 3, 4, 6, 5]), 1890),
    "_weight_norm_interface": ((X, floats(3, 1)), 3 * 15),
    "_weight_norm_interface_backward": ((X, X, floats(3, 1), floats(3, 1), 0), 5 * 15),
    "_embedding_bag": ((floats(11, 5), ints(7), ints(3)), 35),
    "_embedding_bag_forward_only": ((floats(11, 5), ints(7), ints(3)), 35),
    "native_dropout": ((X, 0.1, True), 2 * 15),
    "native_dropout_backward": ((X, torch.empty(3, 5, device="meta", dtype=torch.bool), 1.1), 30),
    # every number of every window once
    "avg_pool2d": ((PLANE, [2, 3]), FLAT_WINDOWS * 6),
    "avg_pool3d": ((SPACE, [2, 3, 4]), DEEP_WINDOWS * 24),
    "max_pool2d_with_indices": ((PLANE, [2, 3]), FLAT_WINDOWS * 6),
    "max_pool3d_with_indices": ((SPACE, [2, 3, 4]), DEEP_WINDOWS * 24),
    "avg_pool2d_backward": (
        (floats(2, 3, 4, 2), PLANE, [2, 3], [2, 3], ZEROS, False, True, None),
        2 * 3 * 8 * 6,
    ),
    "max_pool2d_with_indices_backward": (
        (floats(2, 3, 4, 2), PLANE, [2, 3], [2, 3], ZEROS, ONES, False, ints(2, 3, 4, 2)),
        FLAT_WINDOWS,
    ),
    "_adaptive_avg_pool2d": ((PLANE, [4, 2]), 2 * 3 * 8 * 6),
    "_adaptive_avg_pool2d_backward": ((floats(2, 3, 4, 2), PLANE), 2 * 3 * 8 * 6),
    "adaptive_max_pool2d": ((PLANE, [4, 2]), 2 * 3 * 8 * 6),
    # one number per target
    "nll_loss_forward": ((X, ints(3), None, 1, -100), 3),
    "nll_loss_backward": ((floats(), X, ints(3), None, 1, -100, floats()), 3),
    "nll_loss2d_forward": ((floats(2, 3, 4, 5), ints(2, 4, 5), None, 1, -100), 40),
    "nll_loss2d_backward": (
        (floats(), floats(2, 3, 4, 5), ints(2, 4, 5), None, 1, -100, floats()),
        40,
    ),
    "glu": ((floats(3, 8), -1), 2 * 12),
    "glu_backward": ((floats(3, 4), floats(3, 8), -1), 4 * 24),
    "_cdist_forward": ((X, floats(7, 5), 2.0, None), 3 * 3 * 7 * 5),
    # squares and sums, -2 times the left; the roots of 21 distances, which are at least 0
    "_euclidean_dist": ((X, floats(7, 5)), 3 * 15 + 2 * 35 + 2 * 21),
    # 7 columns of 2 rows are added to zeros
    "_trilinear": (
        (floats(2, 3), floats(7, 3, 4), floats(2, 4), [1, 3], [0], [1, 2], [2, 3]),
        7 * 2,
    ),
    # elementwise functions
    "addcmul": ((X, X, X), 3 * 15),
    "addcmul_": ((X, X, X), 3 * 15),
    "addcdiv": ((X, X, X), 3 * 15),
    "addcdiv_": ((X, X, X), 3 * 15),
    "lerp": ((X, X, 0.3), 3 * 15),
    "floor_divide": ((X, X), 15),
    "floor_divide_": ((X, X), 15),
    "threshold_backward": ((X, X, 0), 15),
    "hardtanh_backward": ((X, X, -1, 1), 15),
    "_prelu_kernel": ((X, floats(1, 5)), 15),
    "polar": ((X, X), 15),
    "log_sigmoid_forward": ((X,), 15),
    "log_sigmoid_backward": ((X, X, X), 15),
    "elu_backward": ((X, 1.0, 1.0, 1.0, False, X), 15),
    "angle": ((X,), 15),
    "logit_backward": ((X, X, 1e-6), 15),
    "leaky_relu_backward": ((X, X, 0.1, False), 15),
    "softplus_backward": ((X, X, 1.0, 20.0), 15),
    "softshrink_backward": ((X, X, 0.5), 15),
    "masked_fill": ((X, torch.empty(3, 5, device="meta", dtype=torch.bool), 0.0), 15),
    "masked_fill_": ((X, torch.empty(3, 5, device="meta", dtype=torch.bool), 0.0), 15),
    **{
        f"{name}_backward": ((X, X), 15)
        for name in ("hardswish", "silu", "gelu", "sigmoid", "tanh", "hardsigmoid")
    },
}  # fmt: skip
# Outside products, where torch makes the call on a GPU alone, or makes other calls of it.
WORK_OF_SHAPES = {
    "_fused_rms_norm": (((3, 5), [5], (5,), 1e-5), (3, 5), 4 * 15),
    "_fused_rms_norm alone": (((3, 5), [5], None, 1e-5), (3, 5), 3 * 15),
    "mish_backward": (((3, 5), (3, 5)), (3, 5), 15),
    "prelu": (((3, 5), (5,)), (3, 5), 15),
    "rrelu_with_noise": (((3, 5), (3, 5)), (3, 5), 15),
    "avg_pool1d": (((2, 3, 8), [2]), (2, 3, 4), 2 * 3 * 8),
    # the gradient of 10 windows, or of 70 padded numbers, is added to 30 numbers
    "avg_pool3d_backward": (((10,), (2, 3, 5), [3, 1, 1]), (2, 3, 5), 30),
    "max_pool3d_with_indices_backward": (((10,), (2, 3, 5), [3, 1, 1]), (2, 3, 5), 10),
    "adaptive_max_pool2d_backward": (((10,), (3, 10), (10,)), (3, 10), 10),
    "adaptive_max_pool3d_backward": (((10,), (2, 3, 5), (10,)), (2, 3, 5), 10),
    "adaptive_max_pool3d": (((2, 3, 5), [1, 1, 1]), (1, 1, 1), 30),
    "_adaptive_avg_pool3d": (((2, 3, 5), [1, 1, 1]), (1, 1, 1), 30),
    "_adaptive_avg_pool3d_backward": (((1, 1, 1), (2, 3, 5)), (2, 3, 5), 30),
    **{
        f"{kind}_pad{axes}d_backward": (((7, 10), (3, 10), [2, 2]), (3, 10), 70)
        for kind in ("reflection", "replication")
        for axes in (1, 2, 3)
    },
    "binary_cross_entropy_with_logits": (((3, 5), (3, 5), None, None, 1), (), 5 * 15),
    "_prelu_kernel_backward": (((3, 5), (3, 5), (1,)), (3, 5), 2 * 15),
    "rrelu_with_noise_backward": (((3, 5), (3, 5), (3, 5)), (3, 5), 15),
    "linalg_cross": (((4, 3), (4, 3)), (4, 3), 4 * 3 * 3),
    "trace": (((5, 5),), (), 5),
    # 12 pairs of points with 2 numbers each
    "_cdist_backward": (((4, 3), (4, 2), (3, 2), 2.0, (4, 3)), (4, 2), 12 * (3 * 2 + 1)),
    "_embedding_bag_backward": (((3, 5), (7,)), (11, 5), 35),
    "_embedding_bag_dense_backward": (((3, 5), (7,)), (11, 5), 35),
}


def called(name, args):
    """The one call of the operation that is seen while it runs on tensors without values."""
    trace = Trace(nn.Module(), valueless=False)
    packet = getattr(torch.ops.aten, name)
    with trace, torch.device("meta"):
        packet(*args)
    return [op for op, _, _ in trace.operations.elements() if op.name == f"aten.{name}"]


def of_shapes(name, args, out):
    """A call as it is described, where shapes stand for tensors."""
    tensors = [torch.empty(a, device="meta") if isinstance(a, tuple) else a for a in args]
    return describe(name, tensors, {}, torch.empty(out, device="meta"), "")


@pytest.mark.parametrize("case", PRODUCTS)
def test_products_by_hand(case):
    args, flops = PRODUCTS[case]
    (operation,) = called(case.split()[0], args)
    assert operations.products(operation) == flops


@pytest.mark.parametrize("case", GIVEN_SHAPES)
def test_products_by_hand_of_operations_for_a_gpu(case):
    args, out, flops = GIVEN_SHAPES[case]
    operation = of_shapes(f"aten.{case.split()[0]}", args, out)
    assert operations.products(operation) == flops


@pytest.mark.parametrize("case", WORK)
def test_other_work_by_hand(case):
    args, flops = WORK[case]
    (operation,) = called(case.split()[0], args)
    assert operations.pointwise(operation) == flops


@pytest.mark.parametrize("case", WORK_OF_SHAPES)
def test_other_work_by_hand_of_shapes(case):
    args, out, flops = WORK_OF_SHAPES[case]
    assert operations.pointwise(of_shapes(f"aten.{case.split()[0]}", args, out)) == flops


def test_attention_that_we_fuse_by_hand():
    q, k, v = (torch.empty(shape, device="meta") for shape in (Q, K, V))
    pairs = 2 * 3 * 7 * 11
    forward, backward = fused(q, k, v), fused(q, k, v, operations.FUSED_BACKWARD)
    assert operations.products(forward) == SCORES + VALUES
    assert operations.products(backward) == BACK
    assert operations.pointwise(forward) == 6 * pairs  # the scale, and the softmax
    assert operations.pointwise(backward) == 7 * pairs
    rows = describe(
        "transformers.grouped_mm_fallback", (LEFT, floats(2, 7, 5)), {}, floats(3, 7), ""
    )
    assert operations.products(rows) == by_hand.loop_product(3, 5, 7)


def test_every_row_of_the_tables_is_counted_by_hand():
    tables = {*operations.PRODUCTS, *operations.WORK, *operations.PER_ELEMENT}
    cases = {*PRODUCTS, *GIVEN_SHAPES, *WORK, *WORK_OF_SHAPES}
    ours = {operations.FUSED, operations.FUSED_BACKWARD, "transformers.grouped_mm_fallback"}
    assert tables - {f"aten.{case.split()[0]}" for case in cases} == ours
    in_both = {*operations.PRODUCTS} & {*operations.WORK} - ours
    both = {
        f"aten.{name}" for name in {c.split()[0] for c in PRODUCTS} & {c.split()[0] for c in WORK}
    }
    assert in_both == both


def test_other_work_on_whole_numbers_costs_nothing():
    assert operations.pointwise(of_shapes("aten.cumsum", ((3, 5), 0), (3, 5))) == 15
    operation = describe("aten.cumsum", (ints(3, 5), 0), {}, ints(3, 5), "")
    assert operations.pointwise(operation) == 0
    assert operations.count(Shape((3, 5))) == 15


@pytest.mark.parametrize(
    "name",
    [
        "pixel_shuffle",
        "channel_shuffle",
        "median",
        "clone",
        "_to_copy",
        "fill_",
        "cat",
        "embedding",
        "gather",
    ],
)
def test_what_moves_or_makes_data_costs_nothing(name):
    args = {
        "pixel_shuffle": (floats(2, 8, 3, 5), 2),
        "channel_shuffle": (floats(2, 8, 3, 5), 2),
        "fill_": (X, 2.0),
        "cat": ([X, X],),
        "embedding": (X, ints(2)),
        "gather": (X, 1, ints(3, 2)),
    }
    assert called(name, args.get(name, (X,))) == []
