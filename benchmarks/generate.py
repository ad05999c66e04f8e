"""Tokens per second of generation, beside `transformers` and beside the bare matrix products.

Same weights, same prompts, greedy: the tokens must be identical before anything is timed. Ours,
theirs and the products take turns in every round, and the median over rounds of their ratio counts.

    python benchmarks/generate.py [--rounds 7] [--threads N] [--only NAME]

As many threads as torch takes by itself, unless told otherwise.
"""

import argparse
import json
import statistics
import tempfile
import time

import torch
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

import querykey as qk
from querykey.models import presets

PROMPT, NEW = 16, 48
SMALL = {"vocab_size": 512, "bos_token_id": None, "eos_token_id": None}


def models(hf):
    """Models of theirs, by name; the first two are 4 layers of 256, the last is GPT-2's size."""
    return {
        "gpt2-4x256": lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(n_embd=256, n_layer=4, n_head=4, n_positions=128, **SMALL)
        ),
        "llama-4x256": lambda: hf.LlamaForCausalLM(
            hf.LlamaConfig(
                hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                num_key_value_heads=2, intermediate_size=688, max_position_embeddings=128, **SMALL,
            )
        ),
        "gpt2-small": lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(bos_token_id=None, eos_token_id=None)
        ),
    }  # fmt: skip


def bare(model, batch):
    """Return a function that does every matrix product of one decoding step, and no more."""
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    inputs = [torch.randn(batch, 1, layer.in_features) for layer in layers]

    def run():
        for _ in range(NEW):
            for layer, x in zip(layers, inputs, strict=True):
                F.linear(x, layer.weight, layer.bias)

    return run


def seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compare(theirs, ours, batch, rounds):
    """Return tokens per second of the three, and the two ratios."""
    ids = torch.randint(2, 500, (batch, PROMPT), generator=torch.Generator().manual_seed(0))
    options = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}
    runs = {
        "ours": lambda: qk.generate(ours, ids, max_new_tokens=NEW),
        "theirs": lambda: theirs.generate(
            ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options
        ),
        "products": bare(ours, batch),
    }
    if not torch.equal(runs["ours"](), runs["theirs"]()):
        raise SystemExit("the tokens differ; nothing was timed")
    with torch.inference_mode():
        times = [{name: seconds(run) for name, run in runs.items()} for _ in range(rounds)]
    rates = {
        name: round(batch * NEW / statistics.median(each[name] for each in times), 1)
        for name in runs
    }
    return rates | {
        "over_theirs": round(statistics.median(t["theirs"] / t["ours"] for t in times), 2),
        "of_products": round(statistics.median(t["products"] / t["ours"] for t in times), 3),
    }


def constant_work():
    """Bytes of state and FLOPs of a kernel decoder's next token, early and late in a text."""
    from torch.utils.flop_counter import FlopCounterMode

    model = qk.models.build(presets.preset("quadratic")).eval()
    found = {}
    with torch.no_grad():
        for length in (8, 512):
            ids = torch.zeros(1, length, dtype=torch.long)
            _, state = model.extend(ids, model.empty_state(1))
            with FlopCounterMode(display=False) as counter:
                _, after = model.extend(ids[:, :1], state)
            found[length] = {"bytes": after.nbytes, "flops": counter.get_total_flops()}
    assert found[8] == found[512], found
    return found[8]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    import transformers as hf

    hf.logging.set_verbosity_error()
    hf.utils.logging.disable_progress_bar()
    results = {"threads": options.threads, "kernel_step": constant_work()}
    for name, make in models(hf).items():
        if options.only not in name:
            continue
        torch.manual_seed(0)
        theirs = make().eval()
        with tempfile.TemporaryDirectory() as folder:
            theirs.save_pretrained(folder)
            ours = qk.models.load(folder)
        for batch in (1, 8):
            found = compare(theirs, ours, batch, options.rounds)
            results[f"{name} batch {batch}"] = found
            print(f"{name:12} batch {batch}  " + "  ".join(f"{k} {v}" for k, v in found.items()))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
