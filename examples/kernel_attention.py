"""Kernel attention: one equation, computed four ways, with the same numbers."""

import torch

import querykey as qk

TOKENS, WIDTH = 300, 16
QUADRATIC = qk.Kernel(qk.Quadratic(), scale=WIDTH**-0.5)


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """sim(q, k) = (q.k + 1)^2, over the keys up to the query's own: every pair is formed."""
    similarity = (q @ k.mT * WIDTH**-0.5 + 1).square().tril()
    return similarity @ v / similarity.sum(-1, keepdim=True)


def by_features(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """sim(q, k) = phi(q).phi(k), summed token by token: no pair is formed."""
    outer = torch.zeros(QUADRATIC.features.width(WIDTH), WIDTH, dtype=q.dtype)
    total = torch.zeros(QUADRATIC.features.width(WIDTH), dtype=q.dtype)
    outs = []
    for phi_q, phi_k, v_j in zip(QUADRATIC.phi(q), QUADRATIC.phi(k), v, strict=True):
        outer, total = outer + phi_k[:, None] * v_j, total + phi_k
        outs.append(phi_q @ outer / (phi_q @ total))
    return torch.stack(outs)


def by_decoding(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One token at a time, with a state whose size does not grow."""
    state = qk.empty_state(QUADRATIC, kv_heads=1, key_dim=WIDTH, value_dim=WIDTH, like=q)
    before, outs = state.nbytes, []
    for i in range(TOKENS):
        token = (x[None, None, i : i + 1] for x in (q, k, v))
        out, state = qk.extend(*token, state)
        outs.append(out[0, 0])
    assert state.nbytes == before
    print(f"decoding {TOKENS} tokens kept {state.nbytes:,} bytes throughout")
    return torch.cat(outs)


def main() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(TOKENS, WIDTH, dtype=torch.float64) for _ in range(3))
    fast = qk.attend(q, k, v, mechanism=QUADRATIC, mask=qk.Causal())
    print(qk.explain(q, k, v, mechanism=QUADRATIC, mask=qk.Causal()))
    for way in (by_hand, by_features, by_decoding):
        difference = float((way(q, k, v) - fast).abs().max())
        print(f"{way.__name__:<12} differs by {difference:.1e}")
        assert difference < 1e-9


if __name__ == "__main__":
    main()
