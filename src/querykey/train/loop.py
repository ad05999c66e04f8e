"""The training loop: pieces of a step, one update, an evaluation and a checkpoint now and then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from querykey.errors import QuerykeyError
from querykey.train import checkpoints
from querykey.train.config import TrainConfig
from querykey.train.data.source import Data, fingerprint
from querykey.train.evaluation import mean_sums
from querykey.train.failures import bad_gradients, first_bad_module
from querykey.train.folder import RunFolder
from querykey.train.interruption import interruption
from querykey.train.model import in_precision
from querykey.train.objectives.objective import Batch, Learner, Objective
from querykey.train.optimizers import make_optimizer, rate_at, set_rate, start_optimizer
from querykey.train.order import SampleOrder, generators_restored, sample_generator, seed_generators
from querykey.train.ranks import Ranks, lost_rank, spread, whole, without_exchange
from querykey.words import check_fields, last_line

DTYPES = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}


class TrainError(QuerykeyError):
    """Says why a run stopped, at which step, and what is left of it."""


@dataclass(frozen=True)
class Progress:
    """What is known after a step."""

    step: int  # steps done
    loss: float
    rate: float
    norm: float  # of the gradient, before it was clipped
    tokens: int
    seconds: float

    def __post_init__(self):
        check_fields(self)


@dataclass(frozen=True)
class Result:
    """How a run ended: all steps done, or stopped by the user after a checkpoint."""

    folder: str
    step: int
    finished: bool
    evaluation: dict[str, float]

    def __post_init__(self):
        check_fields(self)


class Trainer:
    """One run: a model, its objective and data, and where it is written."""

    def __init__(
        self,
        config: TrainConfig,
        model: nn.Module,
        objective: Objective,
        data: Data,
        folder: RunFolder,
        ranks: Ranks,
        device: torch.device,
    ):
        self.config, self.objective, self.data = config, objective, data
        self.folder, self.ranks, self.device = folder, ranks, device
        self.dtype = DTYPES[config.loop.precision]
        # A target is built in evaluation mode, where dropout is off.
        self.model = in_precision(model, device, self.dtype).train()
        self.buffers = checkpoints.TemporaryBuffers(self.model)
        if config.loop.batch < ranks.world:
            raise TrainError(
                f"a batch of {config.loop.batch} cannot be shared by {ranks.world} ranks; "
                f"loop.batch is at least the number of ranks"
            )
        self.order = SampleOrder(len(data.train), config.loop.seed)
        self.learner: nn.Module = Learner(self.model, objective)
        self.run_learner: Any = self.learner
        self.step = 0  # steps done
        self.ready: dict[int, list[Batch]] = {}  # the pieces of the step that comes next
        copies = ranks.world > 1 and not config.loop.shard
        unused = copies and self._has_unused_parameters()
        self.learner = spread(self.learner, ranks, config.loop.shard, unused)
        self.run_learner = torch.compile(self.learner) if config.loop.compile else self.learner
        self.optimizer = make_optimizer(self.model, config.optimizer)
        self.trained = [p for group in self.optimizer.param_groups for p in group["params"]]
        start_optimizer(self.optimizer)
        self.fingerprint = fingerprint(data)

    def run(self, tell: Callable[[Progress], None] = lambda progress: None) -> Result:
        """Train from the newest checkpoint to the last step, or until the user interrupts."""
        try:
            return self._run(tell)
        except (dist.DistError, RuntimeError) as error:
            if not lost_rank(error, self.ranks):
                raise
            raise TrainError(
                f"rank {self.ranks.rank} lost another rank after step {self.step}: "
                f"{last_line(error, 120)}; the same command goes on from the last checkpoint"
            ) from error

    def _run(self, tell: Callable[[Progress], None]) -> Result:
        loop = self.config.loop
        with generators_restored(), interruption() as interrupted:
            self.resume()
            evaluation: dict[str, float] = {}
            while self.step < loop.steps:
                progress = self.advance()
                if self.ranks.first:
                    self.folder.write(asdict(progress) | {"seconds": round(progress.seconds, 6)})
                    tell(progress)
                done = self.step == loop.steps
                stopping = self.ranks.total(interrupted.is_set(), self.device) > 0
                if done or _due(self.step, loop.evaluate_every):
                    evaluation = self.evaluate()
                if done or stopping or _due(self.step, loop.save_every):
                    self.save()
                if stopping and not done:
                    return Result(self.config.folder, self.step, False, evaluation)
            final = evaluation or self.evaluate()
            return Result(self.config.folder, self.step, True, final)

    def advance(self) -> Progress:
        """Do one step: the gradients of all pieces, then one update."""
        began = time.perf_counter()
        batches = self.ready.pop(self.step, None) or self.pieces(self.step)
        tokens = int(self.ranks.total(sum(batch.tokens for batch in batches), self.device))
        mean = self.accumulate(batches)
        length = self.gradient_norm()
        if self.step + 1 < self.config.loop.steps:  # while a GPU is at work on the above
            self.ready = {self.step + 1: self.pieces(self.step + 1)}
        loss = self.over_ranks(mean)
        norm = float(length)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.explain_failure(batches, loss)
        largest = self.config.optimizer.clip or math.inf
        if norm > largest:
            nn.utils.clip_grads_with_norm_(self.trained, largest, length)
        rate = rate_at(self.step, self.config.loop.steps, self.config.optimizer)
        set_rate(self.optimizer, rate)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return Progress(self.step, loss, rate, norm, tokens, time.perf_counter() - began)

    def pieces(self, step: int) -> list[Batch]:
        """Return this rank's samples of a step, cut into pieces."""
        batch, world = self.config.loop.batch, self.ranks.world
        positions = range(step * batch, (step + 1) * batch)[self.ranks.rank :: world]
        count = min(self.config.loop.pieces, batch // world)  # as many on every rank
        return [self.batch_at(positions[i::count]) for i in range(count)]

    def batch_at(self, positions: range) -> Batch:
        """Return the samples at positions of the order as one batch."""
        examples = []
        for position in positions:
            epoch, index = self.order[position]
            generator = partial(sample_generator, self.config.loop.seed, "sample", position)
            sample = self.data.train.sample(index, epoch)
            examples.append(self.objective.example(sample, generator))
        return self.objective.batch(examples)

    def valid_batch(self, indices: range) -> Batch:
        """Return samples of the validation split, with the same random numbers every time."""
        seed, source = self.config.loop.seed, self.data.valid
        examples = [
            self.objective.example(source.sample(i), partial(sample_generator, seed, "valid", i))
            for i in indices
        ]
        return self.objective.batch(examples)

    def gradients(self, batches: list[Batch]) -> float:
        """Add up the gradients of the mean loss over every term of the step; return that mean."""
        return self.over_ranks(self.accumulate(batches))

    def over_ranks(self, mean: Tensor) -> float:
        """Return the sum of what every rank adds to the mean loss."""
        return self.ranks.total(float(mean), self.device)

    def accumulate(self, batches: list[Batch]) -> Tensor:
        """Add up the gradients of this rank's pieces; return what they add to the mean loss."""
        terms = {
            name: self.ranks.total(sum(batch.terms[name] for batch in batches), self.device)
            for name in self.objective.losses
        }
        mean = torch.zeros((), dtype=torch.float64, device=self.device)
        for piece, batch in enumerate(batches):
            with without_exchange(self.learner, last=piece == len(batches) - 1):
                share = self._share(self.sums_of(piece, batch), terms)
                # Ranks' gradients are averaged, and here their sum is wanted.
                (share * self.ranks.world if self.ranks.world > 1 else share).backward()
            mean += share.detach()
        return mean

    def _share(self, sums: dict[str, Tensor], terms: dict[str, float]) -> Tensor:
        """Return what one piece adds to the mean loss of a step."""
        parts = [sums[name] / max(count, 1) for name, count in terms.items()]
        return torch.stack(parts).sum() if len(parts) > 1 else parts[0]

    def sums_of(self, piece: int, batch: Batch) -> dict[str, Tensor]:
        """Return the sums over one piece of this step, with dropout seeded for that piece."""
        seed_generators(self.config.loop.seed, "step", self.step, piece, self.ranks.rank)
        return self.sums(batch)

    def sums(self, batch: Batch) -> dict[str, Tensor]:
        """Return the objective's sums over a batch, in the precision of the run."""
        batch = batch.to(self.device, self.dtype)
        half = self.config.loop.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            return self.run_learner(batch.tensors)

    def _has_unused_parameters(self) -> bool:
        """Whether a step may leave a parameter without a gradient, as experts nobody asked.

        Our own models use the same ones in every step, so that the first piece of the first tells.
        """
        if not type(self.model).__module__.startswith("querykey."):
            return True
        training = self.model.training
        self.model.eval()  # running means stay as they are
        sums = self.sums_of(0, self.pieces(0)[0])
        self._share(sums, dict.fromkeys(self.objective.losses, 1.0)).backward()
        self.model.train(training)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        unused = any(parameter.grad is None for parameter in trained)
        self.model.zero_grad(set_to_none=True)
        return self.ranks.total(unused, self.device) > 0

    def gradient_norm(self) -> Tensor:
        """Return the norm of the whole gradient."""
        gradients = [p.grad for p in self.trained if p.grad is not None]
        return whole(nn.utils.get_total_norm(gradients))

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return the means of the objective's sums over the whole validation split."""
        training = self.model.training
        self.model.eval()
        try:
            means = mean_sums(
                self.sums, self.valid_batch, len(self.data.valid), self.ranks, self.device
            )
            means = {"loss": sum(means[name] for name in self.objective.losses)} | means
        finally:
            self.model.train(training)
        if self.ranks.first:
            self.folder.write({"step": self.step, "evaluation": means})
        return means

    def tensors(self) -> dict[str, Tensor]:
        """Return all that a checkpoint holds: the model's tensors and the optimizer's."""
        tensors = {f"model.{name}": t for name, t in checkpoints.unique_tensors(self.model).items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{key}.{name}"] = value
        return tensors

    def save(self) -> None:
        """Write a checkpoint of this step."""
        record = {"step": self.step, "config": self.config.as_dict(), "ranks": self.ranks.world}
        record |= {"data": self.fingerprint}
        keep = self.config.loop.keep
        tensors = self.tensors() | self.buffers.changed()
        checkpoints.save(self.folder.checkpoints, self.step, tensors, record, keep)

    def resume(self) -> None:
        """Go back to the newest checkpoint that is whole, where there is one."""
        self.ranks.wait()
        newest = checkpoints.latest(self.folder.checkpoints)
        if newest is not None:
            self._refuse_other_data(newest)
            checkpoints.load(newest, self.tensors(), self.buffers.all())
            self.step = newest.step
        if self.ranks.first:
            self.folder.cut_log(self.step)
        self.ranks.wait()

    def explain_failure(self, batches: list[Batch], loss: float) -> None:
        """Raise the error that names the step and what was the first not to be finite."""
        step = self.step + 1  # the one that is under way, as the log counts
        newest = checkpoints.latest(self.folder.checkpoints)
        kept = f"the last good checkpoint is {newest.folder}" if newest else "nothing was saved yet"
        if math.isfinite(loss):
            names = bad_gradients(self.model)
            raise TrainError(f"the gradient of {names} is not finite at step {step}; {kept}")
        self.run_learner = self.learner  # a compiled one does not tell what its modules return
        passes = [partial(self.sums_of, *piece) for piece in enumerate(batches)]
        culprit = first_bad_module(self.model, passes)
        raise TrainError(f"the loss is {loss} at step {step}: {culprit}; {kept}")

    def _refuse_other_data(self, checkpoint: checkpoints.Checkpoint) -> None:
        before = checkpoint.record.get("data", self.fingerprint)
        if before != self.fingerprint:
            raise TrainError(
                f"the data have changed since `{checkpoint.folder}` was saved, so this run cannot "
                f"go on; put the old data back, or give a new run another folder"
            )


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
