"""What one job of `learning.py` does: train a recipe, then measure what it has learned.

A job writes the folder of its run, and `result.json` beside it when it is done or was stopped.
"""

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from learning_peers import TorchTranslator, bag_of_words, unigram_nats

import querykey as qk
from querykey.train import read_config
from querykey.train.data.find import find_folder
from querykey.train.data.parallel import read_lines
from querykey.train.loop import Trainer
from querykey.train.objectives.objective import IGNORED
from querykey.train.objectives.text import TextClass
from querykey.train.order import SampleOrder
from querykey.train.ranks import Ranks, device_for
from querykey.train.recipes import RECIPES
from querykey.train.run import make_trainer


def start(recipe, folder, flags):
    """Return the trainer of a recipe, with flags on top."""
    config = read_config(RECIPES[recipe].config, {"folder": str(folder)} | flags)
    return make_trainer(config, Ranks())


def instead(trainer, model):
    """Return a trainer of another model on the same data, in the same order."""
    torch.manual_seed(trainer.config.loop.seed)
    return Trainer(
        trainer.config, model, trainer.objective, trainer.data, trainer.folder, Ranks(),
        device_for(trainer.config.loop.device),
    )  # fmt: skip


def trained(trainer):
    result = trainer.run()
    trainer.model.eval()
    evaluation = result.evaluation or trainer.evaluate()  # a run that was stopped has none
    return {"step": result.step, "finished": result.finished} | evaluation


def plain(trainer):
    return trained(trainer)


def dates(trainer):
    """Also: how many validation dates are written right, letter for letter, token after token."""
    found, tokenizer, right = trained(trainer), trainer.data.facts.tokenizer, 0
    samples = [trainer.data.valid.sample(i) for i in range(len(trainer.data.valid))]
    for some in grouped(samples, 250):
        source, real = padded([s["source"] for s in some], trainer.device)
        out = qk.generate(trainer.model, source, real=real, max_new_tokens=12)
        for sample, row in zip(some, out.tolist(), strict=True):
            right += until(row[1:], trainer.objective.end) == list(sample["target"])
    return found | {"exact": right / len(samples), "dates": len(samples), "tokens": tokenizer.size}


def translation(trainer):
    """Also: the translations of the test split, and their BLEU where sacrebleu is installed."""
    found, config = trained(trainer), trainer.config.data
    tokenizer, folder = trainer.data.facts.tokenizer, find_folder(config.path, "mt", "a test split")
    sources, targets = (
        read_lines(folder, f"test_2016_flickr.{language}")
        for language in (config.source, config.target)
    )
    said = []
    for some in grouped([tokenizer.encode(line)[: config.length] for line in sources], 100):
        source, real = padded(some, trainer.device)
        if isinstance(trainer.model, TorchTranslator):
            out = trainer.model.translate(source, real, trainer.objective.end)
        else:
            out = qk.generate(trainer.model, source, real=real, max_new_tokens=64)
        said += [tokenizer.decode(until(row[1:], trainer.objective.end)) for row in out.tolist()]
    return found | {"said": said, **bleu(said, targets)}


def bleu(said, targets):
    try:
        import sacrebleu
    except ImportError:
        return {}
    score = sacrebleu.metrics.BLEU()
    return {"bleu": score.corpus_score(said, [targets]).score, "how": str(score.get_signature())}


def translation_by_torch(trainer):
    """The same with torch's nn.Transformer, which begins with the same weights."""
    ours = trainer.model.eval()
    theirs = TorchTranslator(ours).to(trainer.device).eval()
    batch = trainer.valid_batch(range(8)).to(trainer.device, trainer.dtype).tensors
    arguments = batch["source"], batch["target"], batch["source_real"]
    with torch.no_grad():
        wanted = ours(*arguments)
        apart = float((theirs(*arguments) - wanted).abs().max() / wanted.abs().max())
    assert apart < 1e-4, f"the two models differ by {apart}"
    return translation(instead(trainer, theirs)) | {"apart": apart}


def masked(trainer):
    """Also: the mean surprise of the hidden tokens under the frequencies of the training tokens."""
    found = trained(trainer)
    hidden = [
        example.tensors["labels"][example.tensors["labels"] != IGNORED].numpy()
        for example in map(trainer.valid_batch, chunks(len(trainer.data.valid), 256))
    ]
    train = np.asarray(trainer.data.train.tokens).astype(np.int64)
    unigram = unigram_nats(train, np.concatenate(hidden), trainer.data.facts.vocabulary)
    return found | {"unigram": unigram, "below": unigram - found["loss"]}


def classes(trainer):
    """Also: the share that is right, its standard error, and classifiers that count words."""
    found = trained(trainer)
    valid = [trainer.data.valid.sample(i) for i in range(len(trainer.data.valid))]
    share = pairs_right(trainer)
    error = (share * (1 - share) / len(valid)) ** 0.5
    found |= {"right": share, "error": error, "samples": len(valid)}
    if trainer.config.loop.seed == 0:
        some = range(min(len(trainer.data.train), 30000))
        many = [i for i in some if trainer.data.train.sample(i)["label"] != IGNORED]
        epochs = 4 if len(many) < 20000 else 1
        train = [trainer.data.train.sample(i, epoch) for epoch in range(epochs) for i in many]
        write(trainer, found)  # counting takes a while
        try:
            counted = bag_of_words(train, valid, trainer.data.facts.vocabulary, "types" in valid[0])
        except ImportError:  # scikit-learn counts
            return found
        found |= {"counting words": counted}
    return found


def development(trainer):
    """The same on files that are kept out of those to train with: to choose a recipe by."""
    train = trainer.data.train
    labelled = [file for file in train.files if file[0] != IGNORED]
    kept = labelled[2::5]
    files = [file for file in train.files if not any(file is other for other in kept)]
    parts = replace(train, files=files), replace(train, files=kept, seed=None)
    trainer.data = replace(trainer.data, train=parts[0], valid=parts[1])
    trainer.order = SampleOrder(len(parts[0]), trainer.config.loop.seed)
    return classes(trainer)


@torch.no_grad()
def pairs_right(trainer):
    """Return the share of validation samples whose class is right, with no token hidden."""
    objective, right = TextClass(), 0
    for some in chunks(len(trainer.data.valid), 256):
        samples = [trainer.data.valid.sample(i) for i in some]
        batch = objective.batch([objective.example(s, np.random.default_rng) for s in samples])
        tensors = batch.to(trainer.device, trainer.dtype).tensors
        types = {"types": tensors["types"]} if "types" in tensors else {}
        scores = trainer.model(tensors["ids"], tensors.get("real"), **types)
        scores = scores[1] if isinstance(scores, tuple) else scores
        right += int((scores.argmax(-1) == tensors["labels"]).sum())
    return right / len(trainer.data.valid)


def grouped(values, count):
    return [values[i : i + count] for i in range(0, len(values), count)]


def chunks(count, most):
    return [range(i, min(i + most, count)) for i in range(0, count, most)]


def padded(rows, device):
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    for place, row in zip(ids, rows, strict=True):
        place[: len(row)] = torch.as_tensor(np.asarray(row))
    real = torch.arange(longest) < torch.tensor([len(row) for row in rows])[:, None]
    return ids.to(device), real.to(device)


def until(row, end):
    return row[: row.index(end)] if end in row else row


def write(trainer, found):
    file = Path(trainer.config.folder, "result.json")
    file.write_text(json.dumps(found))


def do(job, recipe, folder, flags):
    """Do one job, and leave what it found in the folder of its run."""
    began = time.perf_counter()
    trainer = start(recipe, folder, flags)
    begun = time.perf_counter()
    found = job(trainer)
    found |= {"seconds": time.perf_counter() - begun, "preparing": begun - began}
    found |= {"parameters": sum(p.numel() for p in trainer.model.parameters())}
    write(trainer, found | {"device": str(trainer.device)})
