"""The equations and code of the five documents, transcribed, against ours."""

import math

import einops
import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as document 001 writes it

from querykey.attention.features import Quadratic
from querykey.attention.grids import attend_grid
from querykey.attention.heads import join_heads, split_heads
from querykey.attention.masks import FULL, Causal, Padding
from querykey.attention.mechanisms import Kernel, Similarity, Softmax
from querykey.attention.reference import attend, weights

rng = np.random.default_rng(11)


def close(ours, theirs, tolerance=1e-12):
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=0, atol=tolerance)


def softmax_columns(z):
    return np.exp(z) / np.exp(z).sum(axis=0, keepdims=True)


class TestDocument000:
    n, C, d = 5, 4, 3
    Wq, Wk, Wv = rng.standard_normal((3, 3, 3)) * 0.5
    X = rng.standard_normal((5, 4, 3))

    def test_the_code(self):
        Queries = self.X @ self.Wq
        Keys = self.X @ self.Wk
        KQ = Keys @ np.moveaxis(Queries, 1, 2)
        expKQ = np.exp(KQ)
        softmaxKQ = expKQ / np.sum(expKQ, axis=1, keepdims=True)
        Xout = np.moveaxis(np.moveaxis(self.X, 1, 2) @ softmaxKQ, 1, 2) @ self.Wv
        ours = attend(Queries, Keys, self.X @ self.Wv, mechanism=Softmax(scale=1.0))
        close(ours, Xout)

    def test_the_formula(self):
        """W^V^T X softmax(X^T W^K^T W^Q X), a sequence being the columns of X."""
        for i in range(self.n):
            X = self.X[i].T
            formula = self.Wv.T @ X @ softmax_columns(X.T @ self.Wk.T @ self.Wq @ X)
            q, k, v = (self.Wq @ X).T, (self.Wk @ X).T, (self.Wv.T @ X).T
            close(attend(q, k, v, mechanism=Softmax(scale=1.0)).T, formula)


def scaled_dot_product_attention(q, k, v, key_padding_mask=None, causal=False):
    future_mask = torch.triu(torch.full((64, 64), float("-inf")), 1)
    d_head = q.size(-1)
    s = einops.einsum(q, k, "n tl dh, n sl dh -> n tl sl") / d_head**0.5
    if key_padding_mask is not None:
        s = s.masked_fill(key_padding_mask.unsqueeze(1).to(torch.bool), float("-inf"))
    if causal:
        attn_mask = future_mask[: s.size(1), : s.size(2)].to(s)
        s += attn_mask.unsqueeze(0)
    a = F.softmax(s, dim=-1, dtype=torch.float32).type_as(s)
    return einops.einsum(a, v, "n tl sl, n sl dh -> n tl dh")


class MultiHeadAttention(torch.nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            torch.nn.Linear(width, width) for _ in range(4)
        )

    def forward(self, q, k, v, key_padding_mask=None, causal=False):
        q = self.q_proj(q)
        k = self.k_proj(k)
        v = self.v_proj(v)
        q = einops.rearrange(q, "b tl (nh dh) -> (b nh) tl dh", nh=self.n_heads)
        k = einops.rearrange(k, "b sl (nh dh) -> (b nh) sl dh", nh=self.n_heads)
        v = einops.rearrange(v, "b sl (nh dh) -> (b nh) sl dh", nh=self.n_heads)
        if key_padding_mask is not None:
            key_padding_mask = einops.repeat(key_padding_mask, "b sl -> (b nh) sl", nh=self.n_heads)
        o = scaled_dot_product_attention(q, k, v, key_padding_mask, causal)
        o = einops.rearrange(o, "(b nh) tl dh -> b tl (nh dh)", nh=self.n_heads)
        return self.o_proj(o)


class TestDocument001:
    """Its softmax is float32 and its causal mask top-left; its True means padding, ours real."""

    padding = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]])
    x = torch.tensor(rng.standard_normal((2, 5, 12)))

    def ours(self, module, q, k, mask):
        heads = (
            split_heads(projection(x), module.n_heads)
            for projection, x in ((module.q_proj, q), (module.k_proj, k), (module.v_proj, k))
        )
        return module.o_proj(join_heads(attend(*heads, mask=mask)))

    @pytest.mark.parametrize(
        ("padded", "causal", "mask"),
        [
            (False, False, FULL),
            (True, False, Padding(padding == 0)),  # encoder
            (False, True, Causal()),  # decoder
            (True, True, Causal() & Padding(padding == 0)),
        ],
    )
    def test_multi_head_attention(self, padded, causal, mask):
        module = MultiHeadAttention(12, 3).double()
        padding = self.padding if padded else None
        theirs = module(self.x, self.x, self.x, padding, causal)
        close(self.ours(module, self.x, self.x, mask).detach(), theirs.detach(), 1e-6)

    def test_cross_attention_of_an_encoder_decoder(self):
        module = MultiHeadAttention(12, 3).double()
        target = torch.tensor(rng.standard_normal((2, 3, 12)))
        theirs = module(target, self.x, self.x, self.padding)
        ours = self.ours(module, target, self.x, Padding(self.padding == 0))
        close(ours.detach(), theirs.detach(), 1e-6)

    def test_right_padding_needs_no_key_mask_under_causality_at_real_positions(self):
        q, k, v = (torch.tensor(rng.standard_normal((2, 3, 5, 4))) for _ in range(3))
        real = self.padding == 0
        both = attend(q, k, v, mask=Causal() & Padding(real))
        one = attend(q, k, v, mask=Causal())
        rows = real[:, None, :, None].expand_as(one)
        assert torch.equal(both[rows], one[rows])


class TestDocument002:
    """K heads, key size U < J, value size I = J/K, no output projection, no scale."""

    K, T, J, U, X, Y = 3, 5, 12, 2, 2, 4
    I = J // K  # noqa: E741 - the document's letter
    WQ, WK = rng.standard_normal((2, 3, 2, 12)) * 0.4
    WV = rng.standard_normal((3, 4, 12))

    def test_problem_1(self):
        h_in = rng.standard_normal((self.T, self.J))
        Query = np.einsum("kuj,tj->ktu", self.WQ, h_in)
        Key = np.einsum("kuj,tj->ktu", self.WK, h_in)
        Value = np.einsum("kij,tj->kti", self.WV, h_in)
        h_out = np.zeros((self.T, self.J))
        for t1 in range(self.T):
            Out = []
            for k in range(self.K):
                score = [Query[k, t1] @ Key[k, t2] for t2 in range(self.T)]
                Z = sum(math.exp(s) for s in score)
                alpha = [math.exp(s) / Z for s in score]
                Out.append(sum(alpha[t] * Value[k, t] for t in range(self.T)))
            h_out[t1] = np.concatenate(Out)
        ours = attend(Query, Key, Value, mechanism=Softmax(scale=1.0))
        close(join_heads(ours), h_out)

    def test_problem_2(self):
        h_in = rng.standard_normal((self.X, self.Y, self.J))
        Query = np.einsum("kuj,xyj->kxyu", self.WQ, h_in)
        Key = np.einsum("kuj,xyj->kxyu", self.WK, h_in)
        Value = np.einsum("kij,xyj->kxyi", self.WV, h_in)
        Out = np.zeros((self.K, self.X, self.Y, self.I))
        everywhere = [(x, y) for x in range(self.X) for y in range(self.Y)]
        for k in range(self.K):
            for x1, y1 in everywhere:
                power = {at: math.exp(Query[k, x1, y1] @ Key[k][at]) for at in everywhere}
                Z = sum(power.values())
                Out[k, x1, y1] = sum(power[at] / Z * Value[k][at] for at in everywhere)
        ours = attend_grid(Query, Key, Value, mechanism=Softmax(scale=1.0))
        close(ours, Out)
        flat = (x.reshape(self.K, self.X * self.Y, -1) for x in (Query, Key, Value))
        close(ours.reshape(self.K, -1, self.I), attend(*flat, mechanism=Softmax(scale=1.0)))


class TestDocument003:
    D, N = 4, 6
    X = rng.standard_normal((4, 6))
    beta = rng.standard_normal((3, 4, 1))
    Omega = rng.standard_normal((3, 4, 4)) * 0.4

    def test_equations_1_to_4(self):
        ones = np.ones((1, self.N))
        V, Q, K = (self.beta[i] @ ones + self.Omega[i] @ self.X for i in range(3))
        Sa = V @ softmax_columns(K.T @ Q)
        close(attend(Q.T, K.T, V.T, mechanism=Softmax(scale=1.0)).T, Sa)
        close(weights(Q.T, K.T, mechanism=Softmax(scale=1.0)).T, softmax_columns(K.T @ Q))

    def test_problem_12_10(self):
        """exp(k.q) replaced by g(k).g(q), without ever forming the weights."""
        Q, K, V = rng.standard_normal((3, self.N, self.D))
        g = Quadratic()
        numerator = g(Q) @ (g(K).T @ V)
        denominator = g(Q) @ g(K).sum(axis=0)
        close(attend(Q, K, V, mechanism=Kernel(g)), numerator / denominator[:, None])


class TestDocument004:
    N, F, D, M = 6, 7, 4, 3
    x = rng.standard_normal((6, 7))
    Q, K = x @ rng.standard_normal((7, 4)), x @ rng.standard_normal((7, 4))
    V = x @ rng.standard_normal((7, 3))

    def test_equation_8_and_its_pseudocode(self):
        S, A = np.zeros((self.N, self.N)), np.zeros((self.N, self.N))
        O = np.zeros((self.N, self.M))  # noqa: E741 - the document's letter
        for i in range(self.N):
            for j in range(self.N):
                S[i, j] = self.Q[i, :].T @ self.K[j, :] / math.sqrt(self.D)
        for i in range(self.N):
            Z = 0
            for j in range(self.N):
                Z += math.exp(S[i, j])
            for j in range(self.N):
                A[i, j] = math.exp(S[i, j]) / Z
        for i in range(self.N):
            O[i, :] = 0
            for j in range(self.N):
                O[i, :] += A[i, j] * self.V[j, :]
        close(attend(self.Q, self.K, self.V), O)
        close(weights(self.Q, self.K), A)
        close(softmax_columns(self.K @ self.Q.T / math.sqrt(self.D)).T @ self.V, O)

    def test_equations_9_and_10(self):
        def sim(q, k):
            return np.exp(q @ k.T / math.sqrt(self.D))

        similar = sim(self.Q, self.K)
        equation = (similar @ self.V) / similar.sum(axis=1, keepdims=True)
        close(attend(self.Q, self.K, self.V, mechanism=Similarity(sim)), equation)
        close(attend(self.Q, self.K, self.V), equation)

    def test_equation_11_and_its_pseudocode(self):
        phi, C = Quadratic(), 1 + 4 + 10
        Q, K = self.Q / 3, self.K / 3
        U, Z = np.zeros((C, self.M)), np.zeros(C)
        O = np.zeros((self.N, self.M))  # noqa: E741 - the document's letter
        for j in range(self.N):
            U[:, :] += phi(K[j, :])[:, None] @ self.V[j, :][None, :]
        for j in range(self.N):
            Z[:] += phi(K[j, :])
        for i in range(self.N):
            O[i, :] = phi(Q[i, :]).T @ U[:, :]
            O[i, :] /= phi(Q[i, :]).T @ Z[:]
        close(attend(Q, K, self.V, mechanism=Kernel(Quadratic())), O)
        kernel = (Q @ K.T + 1) ** 2
        close(kernel @ self.V / kernel.sum(axis=1, keepdims=True), O)
