"""A decoder with kernel attention remembers a text of any length in the same few bytes."""

import torch

from querykey.models import Decoder, preset, presets

ids = torch.zeros(1, 400, dtype=torch.long)
for name in ("quadratic", "gpt"):
    config = preset(name) if name == "quadratic" else presets.gpt(length=400)
    model = Decoder(config).eval()
    with torch.no_grad():
        _, early = model.extend(ids[:, :10], model.empty_state())
        _, late = model.extend(ids[:, 10:], early)
    print(f"{name:9} after 10 tokens {early.nbytes:7,} bytes, after 400 {late.nbytes:7,}")
    assert (early.nbytes == late.nbytes) == (name == "quadratic")
