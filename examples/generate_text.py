"""A decoder from a config, taught one sentence, says it: training and generation share a model."""

import torch

import querykey as qk
from querykey.models import Decoder, presets

SENTENCE = b"attention is a weighted sum. "

torch.manual_seed(0)
model = Decoder(presets.llama(width=32, layers=1, heads=2, kv_heads=1, vocabulary=256))
ids = torch.tensor([list(SENTENCE * 2)])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(60):
    scores = model(ids[:, :-1])
    loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), ids[0, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

said = qk.generate(model, ids[:, :9], max_new_tokens=len(SENTENCE))
print(bytes(said[0].tolist()).decode())
assert bytes(said[0].tolist()) == (SENTENCE * 2)[: 9 + len(SENTENCE)]
