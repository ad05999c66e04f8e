"""What breaks a law by design, with the reason: the owner says so, or it is published so."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Any

from querykey.laws.blaming.guilty_module import ROOT
from querykey.laws.finding import Finding
from querykey.laws.subject import Subject
from querykey.laws.understanding.reachable import submodule


@dataclass(frozen=True)
class Limitation:
    """Where a law does not hold by design, and why; `*` stands for anything, as in file names."""

    model: str  # a model_type of transformers, or a class name
    law: str
    reason: str
    module: str = "*"  # the guilty module: its path, a space, its class and file
    note: str = "*"  # the note of the finding
    verdict: str = "limitation"  # or "advice", where its owner may not know of it


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
        module="*MultiheadAttention, torch/*",
    ),
    Limitation(
        "*",
        "causality.*",
        "in training mode BatchNorm averages over all rows and positions, later ones as well",
        module="*BatchNorm*, torch/*",
        verdict="advice",
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
        "yoso",
        "gradient.custom",
        "as published, a lower bound stands for a derivative that has none where a query is a key",
    ),
    Limitation(
        "*",
        "gradient.reaches",
        "the pooler runs under every head, and only classification reads it",
        module="*pooler *transformers*",
    ),
    Limitation(
        "big_bird",
        "gradient.reaches",
        "the pooler runs under every head, and only classification reads it",
        module="bert.pooler *",
    ),
    Limitation(
        "encoder-decoder",
        "*",
        "made of two default configurations, whose decoder is none until its owner says is_decoder",
    ),
    Limitation(
        "t5gemma2",
        "gradient.reaches",
        "the embedding of an image's end is read where there are images",
        module="*embed_tokens *",
    ),
    Limitation(
        "phimoe",
        "gradient.reaches",
        "sparsemixer passes gradients to its router only where several experts are near",
        module="*PhimoeTopKRouter*",
    ),
    Limitation(
        "roc_bert",
        "gradient.reaches",
        "without shapes and pronunciations their embeddings read only the row of padding",
        module="*_embed *",
    ),
    *(
        Limitation(
            name,
            "padding.*",
            "as published, a convolution or pooling over neighbours reads padding too",
        )
        for name in ("convbert", "nystromformer", "mobilebert", "funnel")
    ),
    Limitation(
        "fnet", "dtype.agree", "torch has no Fourier transform in bfloat16", module="*Fourier*"
    ),
    Limitation(
        "xlnet",
        "*",
        "a permutation model: which tokens are seen is said by perm_mask, and by default all are",
    ),
    Limitation("rwkv", "padding.*", "attention_mask is accepted and not used, as documented"),
    Limitation(
        "mamba",
        "cache.[sp]*",
        "with a cache the mask must be left out, as its own generate does",
        note="*",
    ),
    Limitation(
        "hunyuan_v1_moe",
        "gradient.reaches",
        "one expert per token, whose normalised weight is 1 whatever the router says",
        module="*HunYuanMoEV1Gate*",
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
        "cpmant",
        "padding.*",
        "attention_mask is there for pipelines and unused; token 0 is padding",
    ),
    Limitation(
        "falcon_mamba",
        "cache.[sp]*",
        "with a cache the mask must be left out, as its own generate does",
        note="*",
    ),
)  # fmt: skip


def by_design(subject: Subject, law: str, path: str | None = None) -> str:
    """Return why a law does not bind: the owner's reason, or that of a module above `path`."""
    exemptions = [subject.breaks]
    if path is not None:
        parts = [] if path == ROOT else path.split(".")
        modules = [submodule(subject.model, ".".join(parts[:n])) for n in range(len(parts) + 1)]
        exemptions = [getattr(module, "breaks_laws", {}) for module in modules]
    for exempted in exemptions:
        for name, reason in exempted.items():
            if fnmatch.fnmatchcase(law, name):
                return f"by design: {reason}"
    return ""


def limitation(model: Any, finding: Finding) -> Limitation | None:
    """Return the published limitation that a breach is, or None where it is a breach."""
    names = [type(model).__name__, str(getattr(getattr(model, "config", None), "model_type", ""))]
    for entry in TABLE:
        if (
            any(fnmatch.fnmatchcase(name, entry.model) for name in names)
            and fnmatch.fnmatchcase(finding.law, entry.law)
            and fnmatch.fnmatchcase(f"{finding.module} {finding.source}", entry.module)
            and fnmatch.fnmatchcase(finding.note, entry.note)
        ):
            return entry
    return None
