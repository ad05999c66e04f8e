"""Runs by Trainer, Lightning and accelerate that are stopped and resumed, with a part forgotten."""

import warnings

import pytest
import torch
from tests.laws.training.huggingface import gpt
from tests.laws.training.huggingface import texts as rows
from tests.laws.training.models import Decoder, loss_of, texts
from torch.utils.data import DataLoader

import querykey as qk

STEPS, STOP = 4, 2


def by_trainer(folder, last, resume="", forgotten=False):
    """Train to a step with Hugging Face's Trainer, from a checkpoint if one is named."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        str(folder), per_device_train_batch_size=2, max_steps=STEPS, use_cpu=True, report_to=[],
        save_strategy="steps", save_steps=STOP, logging_strategy="no", disable_tqdm=True,
        dataloader_pin_memory=False, learning_rate=1e-2,
    )  # fmt: skip
    trainer = Trainer(gpt(), arguments, train_dataset=rows(12))
    if last < STEPS:

        class Stop(callback()):
            def on_step_end(self, args, state, control, **kwargs):
                control.should_training_stop = state.global_step >= last

        trainer.add_callback(Stop())
    if forgotten:
        (folder / f"checkpoint-{STOP}" / "optimizer.pt").unlink()
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{STOP}") if resume else None)


def callback():
    from transformers import TrainerCallback

    return TrainerCallback


def by_lightning(folder, last, resume="", forgotten=False):
    """Train to a step with Lightning's fit; forgotten is what a checkpoint has of AdamW."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Decoder(dropout=0.0)

        def training_step(self, batch, index):
            return loss_of(self.model(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

        def on_load_checkpoint(self, checkpoint):
            if forgotten:
                checkpoint["optimizer_states"][0]["state"] = {}

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=last // STOP, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        )  # fmt: skip
        saved = folder / "saved.ckpt"
        loader = DataLoader(texts(STOP), batch_size=None)  # a resumed epoch begins anew
        trainer.fit(Module(), loader, ckpt_path=str(saved) if resume else None)
        if last < STEPS:
            trainer.save_checkpoint(saved)


def by_accelerate(folder, last, resume="", forgotten=False):
    """Train to a step with accelerate, which saves and loads what was prepared."""
    from accelerate import Accelerator

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    if resume:
        if forgotten:
            fresh = optimizer.state_dict()
        accelerator.load_state(str(folder))
        if forgotten:
            optimizer.load_state_dict(fresh)
    for ids, labels in texts(6)[STOP if resume else 0 : last]:
        optimizer.zero_grad()
        accelerator.backward(loss_of(model(ids), labels))
        optimizer.step()
    if last < STEPS:
        accelerator.save_state(str(folder))


LIBRARIES = (by_trainer, by_lightning, by_accelerate)


@pytest.mark.slow
@pytest.mark.parametrize("train", LIBRARIES)
@pytest.mark.parametrize("forgotten", [True, False])
def test_an_optimizer_that_a_library_forgets_is_named(train, forgotten, tmp_path):
    def resume():
        train(tmp_path, STOP)
        train(tmp_path, STEPS, "saved", forgotten)

    finding = qk.check_training(lambda: train(tmp_path, STEPS), resume=resume).law(
        "training.resume"
    )
    assert finding.verdict == ("violated" if forgotten else "holds"), finding
    assert ("the state of AdamW is forgotten" in finding.note) == forgotten
