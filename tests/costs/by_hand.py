"""Costs derived by hand, and counted by loops: a third opinion that imports nothing of ours.

A multiply-add is 2 FLOPs. Loops really multiply, one pair of numbers after the other, and count.
"""


def linear(rows, inner, out):
    return 2 * rows * inner * out


def linear_backward(rows, inner, out, input_gradient=True):
    """The gradient of the weight, and of the input where something trainable lies before it."""
    return linear(rows, inner, out) * (2 if input_gradient else 1)


def attention(batch, queries, keys, heads, width, value_width):
    """Scores and weighted sums, all heads."""
    return batch * heads * (2 * queries * keys * width + 2 * queries * keys * value_width)


def self_attention_layer(batch, seq, width):
    """Four projections of one width, and attention between."""
    return 4 * linear(batch * seq, width, width) + attention(batch, seq, seq, 1, width, width)


def encoder_layer(batch, seq, width, hidden):
    mlp = linear(batch * seq, width, hidden) + linear(batch * seq, hidden, width)
    return self_attention_layer(batch, seq, width) + mlp


def loop_product(rows, inner, columns):
    """FLOPs of a matrix product, counted while it is computed."""
    flops = 0
    for _ in range(rows):
        for _ in range(columns):
            for _ in range(inner):
                flops += 2
    return flops


def loop_attention(batch, queries, keys, heads, width, value_width):
    flops = 0
    for _ in range(batch * heads):
        flops += loop_product(queries, width, keys)
        flops += loop_product(queries, keys, value_width)
    return flops


def loop_convolution(batch, channels, out_channels, size, kernel, stride, padding, groups):
    """FLOPs of a square convolution: every tap of every window, padding included."""
    flops, places = 0, len(range(0, size + 2 * padding - kernel + 1, stride))
    for _ in range(batch * out_channels):
        for _ in range(places * places):
            for _ in range(channels // groups):
                for _ in range(kernel * kernel):
                    flops += 2
    return flops


def lstm(batch, seq, inner, hidden):
    """Four gates, each from the input and from the state before."""
    return sum(2 * batch * 4 * hidden * (inner + hidden) for _ in range(seq))


def layer_norm_saved(rows, width):
    """Bytes: its input, and the mean and the deviation of each row (float32)."""
    return 4 * (rows * width + 2 * rows)
