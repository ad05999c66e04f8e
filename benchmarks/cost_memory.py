"""The peak of a training step on a GPU: predicted, and what torch's allocator hands out.

python benchmarks/cost_memory.py

GPT-2 small, a Llama-like model and one with grouped heads, from transformers' own classes, and the
Llama of cost_models.py, with flash attention, with and without activation checkpointing. The step
is a forward and a backward pass; what the model returns is held until its end. The peak is that of
the second step, in `torch.cuda.max_memory_allocated()`, with the work spaces of cuBLAS in it.
"""

import contextlib
import json
import multiprocessing
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import transformers
from cost_models import Transformer
from torch.nn.attention import SDPBackend, sdpa_kernel

import querykey as qk
from querykey.costs.counting.checkpointing import layers_checkpointed
from querykey.show import print_table

LLAMA = {
    "hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16,
    "intermediate_size": 2816, "vocab_size": 32000, "use_cache": False,
}  # fmt: skip
SIZES = ((8, 1024), (2, 512))  # batch, length


def gpt2():
    dropout = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0)
    config = transformers.GPT2Config(**dropout, use_cache=False)
    return transformers.GPT2LMHeadModel(config)


def llama(heads):
    config = transformers.LlamaConfig(**LLAMA, num_key_value_heads=heads)
    return transformers.LlamaForCausalLM(config)


MODELS = {
    "GPT-2 small": gpt2,
    "Llama-like": lambda: llama(16),
    "Llama-like, 4 key heads": lambda: llama(4),
    "Llama in plain torch": lambda: Transformer("llama", 1024, 16, 16),
}


def built(name, device):
    with torch.device(device):
        return MODELS[name]().to(torch.bfloat16).train()


def inputs_of(name, labels):
    if "plain" in name:
        return {"ids": qk.tokens("batch", "seq")}
    tokens = qk.tokens("batch", "seq")
    return {"input_ids": tokens, **({"labels": tokens} if labels else {})}


def predicted(case):
    """Bytes by (batch, length, checkpointed) of a model with a kind of loss."""
    name, labels = case
    report = qk.cost(built(name, "meta"), inputs_of(name, labels), attention="flash")
    return {
        (batch, length, again): int(
            report.at(batch=batch, seq=length).training_bytes("sgd", checkpointing=again).total
        )
        for batch, length in SIZES
        for again in (False, True)
    }


def measured(name, labels, batch, length, again):
    """The peak of the second step, and that of what was asked for, before it is rounded up."""
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()
    model = built(name, "cuda")
    inputs = {
        key: torch.randint(0, 400, (batch, length), device="cuda")
        for key in inputs_of(name, labels)
    }

    def step():
        out = model(**inputs)
        first = out if isinstance(out, torch.Tensor) else out[0]
        first.backward(torch.ones_like(first))

    layers = layers_checkpointed(model) if again else contextlib.nullcontext()
    with layers, sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        step()
        model.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        step()
    torch.cuda.synchronize()
    asked = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    return torch.cuda.max_memory_allocated() - held, asked - held


def main():
    cases = [(name, labels) for name in MODELS for labels in (False, True)]
    cases = [case for case in cases if case != ("Llama in plain torch", True)]
    with multiprocessing.get_context("fork").Pool(len(cases)) as pool:  # before CUDA starts
        found = pool.map(predicted, cases, 1)
    rows = []
    for (name, labels), ours in zip(cases, found, strict=True):
        for (batch, length, again), expected in ours.items():
            theirs, asked = measured(name, labels, batch, length, again)
            loss = "of labels" if labels else "logits"
            step = "checkpointed" if again else "plain"
            error = f"{expected / theirs - 1:+.1%}"
            row = [name, loss, step, f"{batch} x {length}", theirs, expected, error, asked]
            rows.append(row)
    print_table(
        ("model", "loss", "step", "tokens", "measured", "predicted", "error", "asked"), rows
    )
    worst = max(abs(row[5] / row[4] - 1) for row in rows)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    print(json.dumps({"benchmark": "cost_memory", "worst": worst, "rows": rows, **versions}))


if __name__ == "__main__":
    main()
