"""Loops of Hugging Face's Trainer: each takes the name of a fault, or "" for none."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from tests.laws.training.planting import Faults, into
from torch import nn

FAULTS: Faults = {}
faults = into(FAULTS)


def gpt(dropout: float = 0.1) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    config = GPT2Config(
        vocab_size=30, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0,
        eos_token_id=0, loss_type="ForCausalLM", **rates,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def texts(count: int, ragged: bool = False) -> list[dict[str, torch.Tensor]]:
    ids = torch.randint(30, (count, 7), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": row, "labels": row.clone()} for row in ids]
    if ragged:
        for i, row in enumerate(rows):
            row["labels"][2 + i % 5 :] = -100
    return rows


def train(model: Any, data: Any = None, kind: Any = None, steps: int = 3, **options: Any) -> None:
    """Train with the Trainer; options of its arguments and of itself are told apart by name."""
    from transformers import Trainer, TrainingArguments

    names = ("optimizers", "compute_loss_func", "eval_dataset", "callbacks")
    own = {name: options.pop(name) for name in names if name in options}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=2, max_steps=steps, use_cpu=True, report_to=[],
            save_strategy="no", logging_strategy="no", disable_tqdm=True,
            dataloader_pin_memory=False, learning_rate=1e-3, **options,
        )  # fmt: skip
        trainer = (kind or Trainer)(model, arguments, train_dataset=data or texts(12), **own)
        trainer.train()


def keep(*args: Any, **kwargs: Any) -> None:
    """Do nothing in place of clearing gradients."""


@faults("training.zero-grad", "gradients kept")
def clear(fault: str) -> None:
    model = gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if fault:
        model.zero_grad = keep
        optimizer.zero_grad = keep
    train(model, optimizers=(optimizer, None))


def mean_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    scores, wanted = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return nn.functional.cross_entropy(scores, wanted)


def share_of_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any) -> torch.Tensor:
    scores, wanted = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    total = nn.functional.cross_entropy(scores, wanted, reduction="sum")
    return total / num_items_in_batch


@faults("training.accumulation", "a loss that swallows num_items_in_batch")
def accumulate(fault: str) -> None:
    loss = mean_loss if fault else share_of_loss
    train(gpt(), texts(36), gradient_accumulation_steps=3, compute_loss_func=loss)


@faults("training.terms", "a loss that is a mean of means")
def unequal_lengths(fault: str) -> None:
    model = gpt()
    if fault:
        model.accepts_loss_kwargs = False
        forward = model.forward
        model.forward = lambda input_ids, labels: forward(input_ids, labels=labels)
    train(model, texts(36, ragged=True), gradient_accumulation_steps=3)


@faults("training.optimizer", "an optimizer without the last norm")
def cover(fault: str) -> None:
    model = gpt()
    named = [(n, p) for n, p in model.named_parameters() if not (fault and "ln_f" in n)]
    train(model, optimizers=(torch.optim.SGD([p for _, p in named], lr=1e-3), None))


@faults("training.registration", "layers in a list")
def register_all(fault: str) -> None:
    model = gpt()
    if fault:
        layers = list(model.transformer.h)
        del model.transformer.h
        model.transformer.h = layers
    train(model)


@faults("training.update", "a detached embedding")
def move(fault: str) -> None:
    model = gpt()
    model.config.tie_word_embeddings = False
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    if fault:
        model.transformer.drop.register_forward_hook(lambda module, args, out: out.detach())
    train(model)


@faults("training.mode", "left in evaluation by a callback", "evaluated without eval()")
def modes(fault: str) -> None:
    from transformers import TrainerCallback

    class Sample(TrainerCallback):
        """Looks at an answer of the model after every step."""

        def on_step_end(self, args, state, control, model=None, **kwargs):
            if fault != "evaluated without eval()":
                model.eval()
            with torch.no_grad():
                model(torch.ones(1, 5, dtype=torch.long))
            if fault != "left in evaluation by a callback":
                model.train()

    class Trains(nn.Module):
        """Leaves the mode to the loop: Trainer calls train() before every step."""

    model = gpt()
    if fault == "left in evaluation by a callback":
        train_mode = model.train
        model.train = lambda mode=True: model if mode else train_mode(False)
    train(model, callbacks=[Sample()])


@faults("training.scheduler", "a cosine of epochs")
def schedule(fault: str) -> None:
    from torch.optim.lr_scheduler import CosineAnnealingLR

    model = gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    cosine = CosineAnnealingLR(optimizer, T_max=3 if fault else 100)
    train(model, steps=5, optimizers=(optimizer, cosine))


@faults("training.gradients", "a branch that a ReLU kills")
def depth(fault: str) -> None:
    model = gpt()
    model.transformer.h[0].mlp.act = nn.ReLU()
    if fault:
        nn.init.constant_(model.transformer.h[0].mlp.c_fc.bias, -100.0)
    train(model, steps=4)
