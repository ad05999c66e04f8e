"""Published architectures that break a law by design: data, each with its reason."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from querykey.laws.law import Finding
    from querykey.laws.specimen import Specimen


@dataclass(frozen=True)
class Limitation:
    """Where a law does not hold by design, and why. `*` stands for anything, as in file names."""

    model: str  # a model_type of transformers, or a class name
    law: str
    reason: str
    module: str = "*"  # the class that is blamed
    note: str = "*"  # what was tried


FROM_THE_START = (
    "positions are counted from the row's start and no argument takes them, so rows are padded on "
    "the right"
)
CHOICE = "the indexer only chooses which keys are seen, and a choice has no derivative"
TABLE: tuple[Limitation, ...] = (
    Limitation(
        "*",
        "masked-row",
        "torch.nn.MultiheadAttention gives NaN for a row that is all padding (pytorch 41508)",
        module="MultiheadAttention, torch/*",
    ),
    *(
        Limitation(name, "padding.left", FROM_THE_START, note="*without its left padding*")
        for name in (
            "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp",
            "pegasus", "plbart", "prophetnet", "trocr", "whisper", "xglm", "musicgen*", "fsmt",
        )
    ),
    Limitation("*", "gradient.reaches", CHOICE, module="*Indexer*"),
    Limitation(
        "big_bird",
        "gradient.reaches",
        "the pooler runs under every head, and only classification reads it",
    ),
    Limitation(
        "hunyuan_v1_moe",
        "gradient.reaches",
        "one expert per token, whose normalised weight is 1 whatever the router says",
        module="HunYuanMoEV1Gate*",
    ),
    Limitation(
        "deepseek_v4",
        "gradient.reaches",
        "compression windows are longer than the sequences that are tried",
        module="*Compressor*",
    ),
    Limitation(
        "cpmant",
        "causality.*",
        "the whole prompt is context, which its tokens see in both directions",
    ),
    Limitation(
        "cpmant", "padding.*", "attention_mask is there for pipelines and unused; token 0 is padding"
    ),
    Limitation(
        "falcon_mamba",
        "cache.step",
        "with a cache the mask must be left out, as its own generate does",
        note="*",
    ),
)  # fmt: skip


def limitation(specimen: Specimen, law: str, finding: Finding) -> str:
    """The reason, or nothing where a breach is a breach."""
    model: Any = specimen.bench.model
    names = [type(model).__name__, str(getattr(getattr(model, "config", None), "model_type", ""))]
    for each in TABLE:
        if (
            any(fnmatch.fnmatchcase(name, each.model) for name in names)
            and fnmatch.fnmatchcase(law, each.law)
            and fnmatch.fnmatchcase(finding.source or "", each.module)
            and fnmatch.fnmatchcase(finding.note, each.note)
        ):
            return each.reason
    return ""
