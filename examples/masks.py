"""A mask is a rule over positions: compose rules, look at them, ask them about any pair."""

import numpy as np

import querykey as qk

RULES = {
    "a decoder's window of three": qk.Causal() & qk.Window(3),
    "a prefix that all may see": qk.Causal() | qk.Prefix(3),
    "two packed documents": qk.Causal() & qk.Documents(np.array([0, 0, 0, 1, 1, 1, 1, 1])),
    "Longformer's window and one global token": qk.Window(2) | qk.Global(1),
    "every second key, three of them": qk.Causal() & qk.Dilated(3, 2),
}


def drawn(mask: qk.attention.masks.Mask, size: int = 8) -> str:
    rows = mask.matrix(size, size)
    return "\n".join("  " + " ".join("#" if seen else "." for seen in row) for row in rows)


def main() -> None:
    for name, mask in RULES.items():
        print(f"{name}: {mask}\n{drawn(mask)}\n")
    decoding = qk.Causal() & qk.Window(3)
    print(f"a query at position 1000 sees key 998: {decoding.visible(1000, 998)}")


if __name__ == "__main__":
    main()
