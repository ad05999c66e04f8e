"""Ours, torch's FlopCounterMode, fvcore and calflops on the same models, beside the truth.

python benchmarks/cost.py                                   # needs the extra `hf`
python benchmarks/cost.py --peers /path/to/python            # one that has fvcore and calflops
python benchmarks/cost.py --large                            # also Llama-7B, without its weights

The truth is derived by hand (a formula per layer, below), and shares nothing with what is measured.
Answers are compared before anything is printed; the peak of memory is this process's own.
"""

import argparse
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


MODELS = {"encoder layer": encoder_layer, "bert": bert, "gpt2": gpt2, "llama": llama}


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
    return int(analysis.uncalled_modules_warnings(False).total())


def by_calflops(name, model):
    from calflops import calculate_flops

    _, macs, _ = calculate_flops(
        model=model, args=[example(name)], print_results=False, print_detailed=False,
        output_as_string=False,
    )  # fmt: skip
    return int(macs)


def peers(names):
    """Run in the interpreter that has them; what each says, or why it says nothing."""
    found = {}
    for name in names:
        for label, count in (("fvcore", by_fvcore), ("calflops", by_calflops)):
            try:
                found[f"{label} {name}"] = count(name, MODELS[name]())
            except Exception as error:
                found[f"{label} {name}"] = f"{type(error).__name__}: {str(error)[:80]}"
    return found


def ours(name, model):
    import querykey as qk

    inputs = qk.array("batch", "seq", 64) if name == "encoder layer" else qk.tokens("batch", "seq")
    began, used = time.perf_counter(), time.process_time()
    report = qk.cost(model, inputs, attention="math")
    spent = time.perf_counter() - began, time.process_time() - used
    counted = report.at(batch=BATCH, seq=SEQ).flops.forward
    if counted != truth(name):
        raise SystemExit(f"{name}: ours {counted}, the truth {truth(name)}: nothing is timed")
    return report, counted, spent


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", help="a Python that has fvcore and calflops")
    parser.add_argument("--as-peers", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--large", action="store_true", help="also Llama-7B")
    options = parser.parse_args()
    if options.as_peers:
        print(json.dumps(peers(MODELS)))
        return
    theirs = {}
    if options.peers:
        done = subprocess.run(
            [options.peers, __file__, "--as-peers"], capture_output=True, text=True, check=True
        )
        theirs = json.loads(done.stdout.splitlines()[-1])
    ours("encoder layer", encoder_layer())  # the first call also imports
    large = {"bert-base": bert_base} | ({"llama-7b": llama_7b} if options.large else {})
    rows = []
    for name, build in (MODELS | large).items():
        model = build()
        report, counted, (wall, used) = ours(name, model)
        row = {
            "model": name,
            "truth": truth(name),
            "ours": counted,
            "formula": str(report.flops.forward),
        }
        row |= {"seconds": round(wall, 2), "cpu_seconds": round(used, 2)}
        if name in MODELS:
            row["torch"] = by_torch(name, model)
            row |= {
                label: theirs.get(f"{label} {name}", "not run") for label in ("fvcore", "calflops")
            }
        rows.append(row)
    from querykey.show import print_table

    columns = ("model", "truth", "ours", "torch", "fvcore", "calflops", "seconds", "cpu_seconds")
    print(
        f"Forward FLOPs at batch={BATCH}, seq={SEQ}; fvcore and calflops count multiply-adds as 1."
    )
    print_table(columns, [[row.get(column, "") for column in columns] for row in rows])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        json.dumps(
            {
                "benchmark": "cost", "rows": rows, "peak_gib": round(peak, 2),
                "torch": torch.__version__, "transformers": transformers.__version__,
                "python": platform.python_version(), "machine": platform.machine(),
                "cores": os.cpu_count(), "argv": sys.argv[1:],
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
