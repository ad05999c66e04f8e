"""What a model's interface says it is for: its names, its arguments, its methods, its loss."""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch
from torch import nn

from querykey.laws.run import PLAIN, Inputs, Run
from querykey.laws.runner import Runner
from querykey.laws.understanding.cache_protocol import CERTAIN, STARTS
from querykey.laws.understanding.inputs import ECHOES
from querykey.laws.understanding.outputs import tensors

CAUSAL_NAMES = re.compile(r"GPT|Causal|Autoregress|DecoderOnly|LanguageModel|NextToken")
DECODER_NAMES = re.compile(r"Decoder|Llama|LLaMA|Generator")
TARGETS = re.compile(r"tgt|trg|target|dec(oder)?_|prev_|shifted|caption|outputs?\b")
# Operations that run along a sequence in one direction.
ALONG = {"cumsum", "cumprod", "logcumsumexp", "fft_rfft", "rfft", "conv1d", "lstm", "gru"}
REVERSED = re.compile(r"backward|reverse|right_?to_?left|r2l", re.I)
TURNS = {"flip", "flipud", "fliplr"}  # by which a sequence is read from its end
MODEL_NAMES = re.compile(r"(?<!M)LM(?![a-z])")  # of words, in one direction or in both
OPEN_NAMES = re.compile(r"BERT|Bert|Encoder|Masked|MLM|Denois|Diffusion|Bidirect|Electra|Tagger")


def looks_ahead_alone(runner: Runner, back: torch.Tensor) -> bool:
    """Return whether a model that scores words sees later ones alone, and is not called reversed.

    Then its mask, shift or padding is the wrong way round.
    """
    names = [type(module).__name__ for module in runner.copies.model.modules()]
    turned = runner.copies.functions & TURNS or any(map(REVERSED.search, names))
    return not back.any() and not turned and scores_words(runner)


def sign_of_names(model: nn.Module) -> str:
    """Return what in the names of the user's classes and arguments says that a model is causal."""
    for module in model.modules():
        kind = type(module)
        if kind.__module__.startswith(("torch.", "transformers.")):
            continue
        if CAUSAL_NAMES.search(kind.__name__) and not OPEN_NAMES.search(kind.__name__):
            return f"its class is called {kind.__name__}"
        arguments = inspect.signature(module.forward).parameters
        caches = [n for n in arguments if CERTAIN.search(n) and not n.startswith("encoder")]
        if caches:
            return f"it takes `{caches[0]}`"
    return ""


def is_called_open(model: nn.Module) -> bool:
    """Return whether a name says that a model is meant to look in both directions."""
    names = {type(m).__name__ for m in model.modules() if type(m).__module__[:6] != "torch."}
    return any(OPEN_NAMES.search(name) for name in names)


def scores_words(runner: Runner) -> bool:
    """Return whether it takes token ids and scores the whole vocabulary at every position."""
    main = runner.signature.main
    if main.kind != "tokens" or not runner.signature.sequential:
        return False
    answer = runner.attempt(runner.inputs(), PLAIN)
    if answer is None or answer.dim() != 3:
        return False
    words = {m.num_embeddings for m in runner.copies.model.modules() if isinstance(m, nn.Embedding)}
    return answer.shape[-1] in {*words, main.high} or (
        not words and _is_vocabulary(runner, answer.shape[-1])
    )


def _is_vocabulary(runner: Runner, count: int) -> bool:
    """Return whether a model without an Embedding takes so many ids, and raises for one more."""
    if runner.copies.device.type != "cpu":
        return False  # there a wrong id ends the process

    def takes(token: int) -> bool:
        def last(value: torch.Tensor) -> None:
            value[:, -1] = token

        return runner.attempt(runner.signature.edit(runner.inputs(), last), PLAIN) is not None

    return takes(count - 1) and not takes(count)


def sign_of_decoding(runner: Runner, pairs: bool) -> str:
    """Return what in the interface of a model that scores words says that it continues texts.

    `pairs` says that its attention weighs every pair of positions: where it cannot, as behind a
    projection along the sequence or through latents, "LM" in a name is no sign of a lost mask.
    """
    model = runner.copies.model
    for name in filter(STARTS.match, runner.copies.parameters):
        return f"it scores words and takes the number of tokens so far, `{name}`"
    main, others = runner.signature.main.name, runner.signature.others()
    if pairs and others and TARGETS.match(main) and not OPEN_NAMES.search(type(model).__name__):
        return f"it scores the words of `{main}`, given `{others[0].name}`"
    for name in ("generate", "sample", "decode_step", "step"):
        function = getattr(type(model), name, None)
        library = getattr(function, "__module__", "torch.").startswith(("torch.", "transformers."))
        if callable(function) and not library:
            return f"it scores words and has a method `{name}`"
    shifted = _shifted_loss(runner)
    if shifted:
        return f"its loss compares every position's scores with the next of `{shifted}`"
    kind = type(model).__name__
    mixes = pairs or bool(runner.copies.functions & ALONG)
    if DECODER_NAMES.search(kind) or (mixes and MODEL_NAMES.search(kind)):
        return f"it scores words and its class is called {kind}"
    return ""


def _shifted_loss(runner: Runner) -> str:
    """Return the argument whose first label the loss does not read, but whose second it does."""
    for name in [n for n in runner.copies.parameters if ECHOES.match(n)]:
        inputs = runner.inputs()
        labels = inputs[runner.signature.main.name]
        first, second = labels.clone(), labels.clone()
        first[:, 0] = labels[:, 0].roll(1)
        second[:, 1] = labels[:, 1].roll(1)
        try:
            losses = [_loss(runner, {**inputs, name: value}) for value in (labels, first, second)]
        except Exception:
            continue
        if None not in losses and losses[0] == losses[1] != losses[2]:
            return name
    return ""


def _loss(runner: Runner, inputs: Inputs) -> float | None:
    """Return the one number among the outputs, or None where there is none."""
    with torch.no_grad():
        output: Any = runner.call(runner.complete(Run(inputs, PLAIN)))
    numbers = [t for _, t in tensors(output) if t.dim() == 0 and t.is_floating_point()]
    return float(numbers[0]) if len(numbers) == 1 else None
