"""Ours, torch's FlopCounterMode and three other tools on the same models, beside the truth.

python benchmarks/cost.py                    # ours and torch's; needs the extra `hf`
python benchmarks/cost.py --peers            # also fvcore, calflops (extra `bench`) and DeepSpeed
python benchmarks/cost.py --peers FOLDER     # ... which `pip install --target FOLDER` put there
python benchmarks/cost.py --large            # also Llama-7B, without its weights

The truth is derived by hand (a formula per layer, below), and shares nothing with what is measured.
Ours is compared with it, forward and backward, before anything is timed. Each of our models gets an
interpreter of its own: `first` is the first call there, `again` the second, `start` everything else
(the interpreter, importing torch and transformers), and the peak of memory is that interpreter's.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import transformers
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

BATCH, SEQ = 5, 32
PEERS = ("torch", "fvcore", "calflops", "deepspeed")


def encoder_layer():
    return nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0).eval()


def bert():
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        vocab_size=97, max_position_embeddings=256,
    )  # fmt: skip
    return transformers.BertModel(config).eval()


def gpt2():
    config = transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=4, vocab_size=97, n_positions=256, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


def llama():
    config = transformers.LlamaConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=112, vocab_size=97,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def bert_base():
    return transformers.BertModel(transformers.BertConfig()).eval()


def llama_7b():
    config = transformers.LlamaConfig(
        hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
        vocab_size=32000,
    )  # fmt: skip
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(config).eval()


def layer(rows, seq, width, key_width, hidden, maps):
    """Queries and output of one width, keys and values of another, attention, an MLP of maps."""
    projections = 2 * rows * width * (2 * width + 2 * key_width)
    return projections + 4 * rows * seq * width + maps * 2 * rows * width * hidden


def truth(name, batch=BATCH, seq=SEQ):
    rows = batch * seq
    return {
        "encoder layer": layer(rows, seq, 64, 64, 128, 2),
        "bert": 2 * layer(rows, seq, 64, 64, 128, 2) + 2 * batch * 64 * 64,
        "gpt2": 2 * layer(rows, seq, 64, 64, 256, 2) + 2 * rows * 64 * 97,
        "llama": 2 * layer(rows, seq, 64, 32, 112, 3) + 2 * rows * 64 * 97,
        "bert-base": 12 * layer(rows, seq, 768, 768, 3072, 2) + 2 * batch * 768 * 768,
        "llama-7b": 32 * layer(rows, seq, 4096, 4096, 11008, 3) + 2 * rows * 4096 * 32000,
    }[name]


def truth_backward(name, batch=BATCH, seq=SEQ):
    """Twice the forward pass, less what leads to no trainable weight.

    The first projections of the encoder layer need no gradient of their input; the pooler of BERT
    stands behind the output that is summed up.
    """
    unused = {
        "encoder layer": 2 * batch * seq * 64 * 3 * 64,
        "bert": 2 * 2 * batch * 64 * 64,
        "bert-base": 2 * 2 * batch * 768 * 768,
    }
    return 2 * truth(name, batch, seq) - unused.get(name, 0)


MODELS = {
    "encoder layer": encoder_layer,
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "bert-base": bert_base,
}
LARGE = {"llama-7b": llama_7b}


def example(name):
    if name == "encoder layer":
        return torch.randn(BATCH, SEQ, 64)
    return torch.randint(0, 97, (BATCH, SEQ))


def by_torch(name, model):
    with FlopCounterMode(display=False) as counter:
        model(example(name))
    return counter.get_total_flops()


def by_fvcore(name, model):
    from fvcore.nn import FlopCountAnalysis

    class Tensors(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            out = self.model(x)
            return out if isinstance(out, torch.Tensor) else out[0]

    analysis = FlopCountAnalysis(Tensors(), example(name)).unsupported_ops_warnings(False)
    return 2 * int(analysis.uncalled_modules_warnings(False).total())


def by_calflops(name, model):
    from calflops import calculate_flops

    _, macs, _ = calculate_flops(
        model=model, args=[example(name)], print_results=False, print_detailed=False,
        output_as_string=False,
    )  # fmt: skip
    return 2 * int(macs)


def by_deepspeed(name, model):
    """DeepSpeed's profiler; DS_BUILD_OPS=0 pip install --no-deps deepspeed, and four small ones."""
    from deepspeed.profiling.flops_profiler import get_model_profile

    _, macs, _ = get_model_profile(
        model=model, args=[example(name)], print_profile=False, as_string=False
    )
    return 2 * int(macs)


COUNTS = (by_torch, by_fvcore, by_calflops, by_deepspeed)


def peers(names, wanted):
    """What each peer says, or why it says nothing."""
    found = {}
    for label, count in zip(PEERS, COUNTS, strict=True):
        for name in names if label in wanted else ():
            try:
                found[label, name] = count(name, MODELS[name]())
            except Exception as error:
                found[label, name] = f"{type(error).__name__}: {str(error)[:80]}"
    return found


def ours(name):
    """In an interpreter of its own: what we count, whether it is right, and how long it takes."""
    began = time.perf_counter()
    model = (MODELS | LARGE)[name]()
    import querykey as qk

    spent = [time.perf_counter() - began]
    inputs = qk.array("batch", "seq", 64) if name == "encoder layer" else qk.tokens("batch", "seq")
    for _ in range(2):
        began = time.perf_counter()
        report = qk.cost(model, inputs, attention="math")
        spent.append(time.perf_counter() - began)
    flops = report.at(batch=BATCH, seq=SEQ).flops
    return {
        "ours": flops.forward, "ours_backward": flops.backward,
        "formula": str(report.flops.forward), "formula_backward": str(report.flops.backward),
        "build": spent[0], "first": spent[1], "again": spent[2],
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }  # fmt: skip


def apart(name):
    """Run `ours` in a new interpreter, and refuse a wrong answer."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "--one", name], stdout=subprocess.PIPE, text=True, check=True
    )
    row = json.loads(done.stdout.splitlines()[-1])
    row["start"] = time.perf_counter() - began - row["build"] - row["first"] - row["again"]
    row |= {key: round(row[key], 2) for key in ("start", "build", "first", "again")}
    right = truth(name), truth_backward(name)
    if (row["ours"], row["ours_backward"]) != right:
        raise SystemExit(f"{name}: ours {row['ours']}, {row['ours_backward']}, the truth {right}")
    return {"model": name, "truth": right[0], "truth_backward": right[1], **row}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", nargs="?", const="", help="other tools, in a folder")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--large", action="store_true", help="also Llama-7B")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(ours(options.one)))
        return
    sys.path += [options.peers] if options.peers else []
    wanted = PEERS[:1] if options.peers is None else PEERS
    rows = [apart(name) for name in (*MODELS, *(LARGE if options.large else ()))]
    theirs = peers(MODELS, wanted)
    for row in rows:
        row |= {label: theirs.get((label, row["model"]), "not run") for label in wanted}
    from querykey.show import print_table

    print(f"FLOPs of one forward pass at batch={BATCH}, seq={SEQ}; multiply-adds taken twice.")
    columns = ("model", "truth", "ours", *wanted, "start", "first", "again", "peak_gib")
    print_table(columns, [[cell(row, column) for column in columns] for row in rows])
    found = {"benchmark": "cost", "rows": rows, "versions": versions(wanted)}
    found |= {"python": platform.python_version(), "machine": platform.machine()}
    print(json.dumps({**found, "cores": os.cpu_count(), "argv": sys.argv[1:]}))


def cell(row, column):
    """A count with its share of the truth, or what is there."""
    value = row[column]
    if column not in ("ours", *PEERS) or not isinstance(value, int):
        return value
    return f"{value} ({100 * value / row['truth']:.1f} %)"


def versions(wanted):
    found = {}
    for name in ("torch", "transformers", *wanted[1:]):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


if __name__ == "__main__":
    main()
