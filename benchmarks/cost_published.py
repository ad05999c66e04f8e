"""Ten published models at their own size: parameters and forward FLOPs, and who else says so.

python benchmarks/cost_published.py
python benchmarks/cost_published.py --only "GPT-2 small"

Every model is costed in a process of its own, forward and backward, with the seconds of a processor
and the memory that this takes beyond torch and transformers. `published` parameters are those of
the checkpoints. FLOPs are compared with torch's FlopCounterMode over the model's eager attention,
which shares no formula with ours, and with what was published: for GPT-2 small nanoGPT's
`transformer_sizing.ipynb`, for ViT-B/16 torchvision's table (multiply-adds, taken twice), for
BERT-base the TinyBERT paper (table 1), and for the others the formula of the PaLM paper (appendix
B), 2 N + 4 L H Q T per token, N without the table of tokens that is only looked up in.
"""

import argparse
import json
import multiprocessing
import os
import resource
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import transformers as hf
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import querykey as qk
from querykey.show import print_table

SEQ = 1024
TOKENS = {"input_ids": ("batch", "seq")}
BOTH = {"input_ids": ("batch", "seq"), "decoder_input_ids": ("batch", "seq")}
LLAMA = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32,
}  # fmt: skip
LARGE = {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8,
}  # fmt: skip
MISTRAL = {"intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": None}
GEMMA = {
    "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
}  # fmt: skip
T5 = {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8}
OPT = {"hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072, "num_attention_heads": 12}


def palm(layers, width, looked_up=0):
    """FLOPs of a forward pass by PaLM's formula; width is that of all heads."""

    def flops(params):
        return SEQ * (2 * (params - looked_up) + 4 * layers * width * SEQ)

    return flops


# Name: class, config, its inputs, published parameters, published FLOPs at 1 row, length.
MODELS = {
    "GPT-2 small": (
        hf.GPT2LMHeadModel, hf.GPT2Config, {}, TOKENS, 124_439_808, 291_648_307_200, SEQ,
    ),
    "GPT-2 XL": (
        hf.GPT2LMHeadModel, hf.GPT2Config, {"n_embd": 1600, "n_layer": 48, "n_head": 25}, TOKENS,
        1_557_611_200, palm(48, 1600, 1024 * 1600), SEQ,
    ),
    "BERT-base": (hf.BertModel, hf.BertConfig, {}, TOKENS, 109_482_240, 22.5e9, 128),
    "T5-small": (
        hf.T5ForConditionalGeneration, hf.T5Config, T5, BOTH, 60_506_624, palm(18, 512), SEQ,
    ),
    "OPT-125M": (
        hf.OPTForCausalLM, hf.OPTConfig, OPT, TOKENS, 125_239_296, palm(12, 768, 2050 * 768), SEQ,
    ),
    "ViT-B/16": (
        hf.ViTForImageClassification, hf.ViTConfig, {"num_labels": 1000}, {"pixel_values": None},
        86_567_656, 2 * 17.56e9, 224,
    ),
    "Llama-2-7B": (
        hf.LlamaForCausalLM, hf.LlamaConfig, LLAMA, TOKENS, 6_738_415_616,
        palm(32, 4096, 32000 * 4096), SEQ,
    ),
    "Llama-2-70B": (
        hf.LlamaForCausalLM, hf.LlamaConfig, LLAMA | LARGE, TOKENS, 68_976_648_192,
        palm(80, 8192, 32000 * 8192), SEQ,
    ),
    "Mistral-7B": (
        hf.MistralForCausalLM, hf.MistralConfig, LLAMA | MISTRAL, TOKENS, 7_241_732_096,
        palm(32, 4096, 32000 * 4096), SEQ,
    ),
    "Gemma-2-2B": (
        hf.Gemma2ForCausalLM, hf.Gemma2Config, GEMMA, TOKENS, 2_614_341_888, palm(26, 2048), SEQ,
    ),
}  # fmt: skip


def built(name, device, **settings):
    made, config, values, *_ = MODELS[name]
    config = config(**values)
    config.use_cache = False
    if settings:
        config._attn_implementation = settings["attention"]
    with torch.device(device):
        return made(config).eval()


def ours(name):
    """The report of `qk.cost` at one row, and what it took."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    model, axes, length = built(name, "meta"), MODELS[name][3], MODELS[name][6]
    image = qk.images("batch", 3, length, length)
    inputs = {key: qk.tokens(*names) if names else image for key, names in axes.items()}
    report = qk.cost(model, inputs)
    sizes = {"batch": 1, "seq": length}
    at = report.at(**{size: sizes[size] for size in report.symbols})
    spent = time.process_time() - began
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    row = {"params": int(at.params), "forward": int(at.flops.forward)}
    row |= {"backward": int(at.flops.backward), "seconds": spent, "gib": most / 2**20}
    return row | {"formula": str(report.flops.forward), "valid": str(report.valid)}


def theirs(name):
    """FLOPs by torch's counter over eager attention, on tensors without values."""
    length, inputs = MODELS[name][6], {}
    images = "pixel_values" in MODELS[name][3]  # a convolution wants meta
    with torch.device("meta") if images else FakeTensorMode(allow_non_fake_inputs=True):
        model = built(name, "meta" if images else "cpu", attention="eager")
        for key, axes in MODELS[name][3].items():
            image = torch.empty(1, 3, length, length)
            inputs[key] = torch.zeros(1, length, dtype=torch.long) if axes else image
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(**inputs)
    return counter.get_total_flops()


def in_a_process(work, name):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(work, (name,))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="names of models, separated by commas")
    options = parser.parse_args()
    chosen = [name for name in MODELS if not options.only or name in options.only.split(",")]
    rows = {}
    for name in chosen:
        row = rows[name] = in_a_process(ours, name)
        row["counter"] = in_a_process(theirs, name)
        row["published_params"], published = MODELS[name][4:6]
        row["published"] = published(row["params"]) if callable(published) else published
    columns = (
        "model", "parameters", "published", "forward FLOPs", "of counter", "of published",
        "backward", "s", "GiB",
    )  # fmt: skip
    cells = [
        [
            name, row["params"], f"{row['params'] / row['published_params']:.2%}", row["forward"],
            f"{row['forward'] / row['counter']:.2%}", f"{row['forward'] / row['published']:.2%}",
            row["backward"], f"{row['seconds']:.1f}", f"{row['gib']:.2f}",
        ]
        for name, row in rows.items()
    ]  # fmt: skip
    print_table(columns, cells)
    print(json.dumps({"benchmark": "cost_published", "rows": rows}))


if __name__ == "__main__":
    main()
