"""Code of the documents, as they print it, to be run as it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from querykey import ag

# Document 000. It asks for names `ag` and `np`, and draws its weights from np.random.randn.
BLOCK = """
# IMPORTANT: the batch data tensor has shape (n_samples, n_context, n_features)
#
class SingleHeadAttention:
    def __init__(self, n_features):
        self.Wq = ag.Tensor(np.random.randn(n_features, n_features), label="Wq")
        self.Wk = ag.Tensor(np.random.randn(n_features, n_features), label="Wk")
        self.Wv = ag.Tensor(np.random.randn(n_features, n_features), label="Wv")
    def __call__(self, Xin):
        Queries = Xin @ self.Wq
        Keys = Xin @ self.Wk
        KQ = (Keys @ ag.moveaxis(Queries, 1,2))
        expKQ = ag.exp(KQ)
        softmaxKQ = expKQ / ag.sum(expKQ, axis=1, keepdims=True)
        Xout = ag.moveaxis(ag.moveaxis(Xin,1,2) @ softmaxKQ, 1,2) @ self.Wv
        return Xout

class MLP:
    def __init__(self, n_features, n_hidden):
        self.Wh = ag.Tensor(np.random.randn(n_features, n_hidden), label="Wh")
        self.bh = ag.Tensor(np.random.randn(n_hidden), label="bh")
        self.wo = ag.Tensor(np.random.randn(n_hidden, n_features), label="Wo")
        self.bo = ag.Tensor(np.random.randn(n_features), label="bo")

    def __call__(self, Xin):
        hidden = ag.relu((Xin @ self.Wh) + self.bh)
        return hidden @ self.wo + self.bo

class TransformerBlock:
    def __init__(self, n_features, n_hidden):
        self.att = SingleHeadAttention(n_features)
        self.mlp = MLP(n_features, n_hidden)
    def __call__(self, Xin):
        return self.mlp(self.att(Xin))
"""

# Document 001, with its line numbers; `future_mask`, which it does not print, is torch's usual one.
ATTENTION = """
def scaled_dot_product_attention(q, k, v, key_padding_mask=None, causal=False):
    d_head = q.size(-1)
    s = (einops.einsum(q, k, "n tl dh, n sl dh -> n tl sl")
         / d_head ** 0.5)
    if key_padding_mask is not None:
        s = s.masked_fill(
            key_padding_mask.unsqueeze(1).to(torch.bool),
            float("-inf"),
        )
    if causal:
        attn_mask = future_mask[: s.size(1), : s.size(2)].to(s)
        s += attn_mask.unsqueeze(0)
    a = F.softmax(s, dim=-1, dtype=torch.float32).type_as(s)
    return einops.einsum(a, v, "n tl sl, n sl dh -> n tl dh")
"""


# Document 001's second listing, line for line: what is said of a line goes by its number here.
HEADS_LISTING = """\
def forward(self, q, k, v, key_padding_mask=None, causal=False):
    q = self.q_proj(q)
    k = self.k_proj(k)
    v = self.v_proj(v)
    q = einops.rearrange(q, "b tl (nh dh) -> (b nh) tl dh",
        nh=self.n_heads)
    k = einops.rearrange(k, "b sl (nh dh) -> (b nh) sl dh",
        nh=self.n_heads)
    v = einops.rearrange(v, "b sl (nh dh) -> (b nh) sl dh",
        nh=self.n_heads)
    if key_padding_mask is not None:
        key_padding_mask = einops.repeat(
            key_padding_mask, "b sl -> (b nh) sl",
            nh=self.n_heads)
    o = scaled_dot_product_attention(q, k, v, key_padding_mask, causal)
    o = einops.rearrange(o, "(b nh) tl dh -> b tl (nh dh)",
        nh=self.n_heads)
    return self.o_proj(o)
"""


class Seeded:
    """Stands for NumPy in document 000: its `random.randn` draws from one seed."""

    def __init__(self, seed: int):
        self.random, self.rng = self, np.random.default_rng(seed)

    def randn(self, *shape: int) -> np.ndarray:
        """Return standard normal numbers."""
        return self.rng.standard_normal(shape)


def transformer_block(features: int, hidden: int, seed: int) -> Any:
    """Return document 000's TransformerBlock on `querykey.ag`, with weights of a seed."""
    names: dict[str, Any] = {"ag": ag, "np": Seeded(seed)}
    exec(BLOCK, names)
    return names["TransformerBlock"](features, hidden)


def attention_function(longest: int) -> Any:
    """Return document 001's function, with a future mask for up to `longest` positions."""
    import einops
    import torch
    from torch.nn import functional as F  # noqa: N812 - as the text calls it

    future = torch.full((longest, longest), float("-inf"), dtype=torch.float64).triu(1)
    names: dict[str, Any] = {"einops": einops, "torch": torch, "F": F, "future_mask": future}
    exec(ATTENTION, names)
    return names["scaled_dot_product_attention"]
