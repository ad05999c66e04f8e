"""No alarm on x-transformers, whose one true defect here is found and named."""

import pytest
import torch

from querykey.laws import Subject, check

x_transformers = pytest.importorskip("x_transformers", reason="x-transformers is not installed")
pytestmark = pytest.mark.slow

SIZES = {"dim": 32, "depth": 2, "heads": 4, "attn_dim_head": 8}


def language_model(kind="Decoder", **more):
    layers = getattr(x_transformers, kind)(**SIZES, **more)
    return x_transformers.TransformerWrapper(num_tokens=61, max_seq_len=64, attn_layers=layers)


def pair():
    """Its encoder-decoder returns a loss; what is checked is what its decoder says."""
    encoder, decoder = language_model("Encoder"), language_model("Decoder", cross_attend=True)
    both = torch.nn.ModuleDict({"encoder": encoder, "decoder": decoder})

    def forward(src, tgt):
        memory = both["encoder"](src, return_embeddings=True)
        return both["decoder"](tgt, context=memory)

    ids = torch.randint(0, 61, (2, 7)), torch.randint(0, 61, (2, 5))
    return Subject(forward, example=ids)


LAWFUL = {
    "plain": (language_model, "decoder"),
    "encoder": (lambda: language_model("Encoder"), "encoder"),
    "fused": (lambda: language_model(attn_flash=True), "decoder"),
    "alibi": (lambda: language_model(alibi_pos_bias=True), "decoder"),
    "buckets": (lambda: language_model(rel_pos_bias=True), "decoder"),
    "shared key heads": (lambda: language_model(attn_kv_heads=2), "decoder"),
    "memory keys": (lambda: language_model(attn_num_mem_kv=3), "decoder"),
    "the best keys only": (lambda: language_model(attn_sparse_topk=4), "decoder"),
    "layers": (lambda: x_transformers.Decoder(**SIZES), "decoder"),
    "attention": (lambda: x_transformers.Attention(dim=32, heads=4, dim_head=8), "encoder"),
    "pair": (pair, "encoder-decoder"),
}


OFTEN = ("plain", "encoder", "the best keys only", "pair")  # the others in the long suite


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in OFTEN else pytest.mark.full) for n in LAWFUL]
)
def test_a_lawful_one_raises_no_alarm(name):
    make, kind = LAWFUL[name]
    report = check(make())
    assert report.kind == kind
    assert [f for f in report.laws if f.verdict in ("violated", "error", "tie")] == []
    assert report.law("batch.others").verdict == "holds"


def test_an_image_is_given_as_an_example():
    model = x_transformers.ViTransformerWrapper(
        image_size=32, patch_size=8, num_classes=10, attn_layers=x_transformers.Encoder(**SIZES)
    )
    report = check(model, example=torch.randn(2, 3, 32, 32))
    assert report.kind == "vision"
    assert [f for f in report.laws if f.verdict in ("violated", "error", "tie")] == []


def test_shifted_tokens_read_left_padding():
    """The shift before a feedforward is not handed the mask that the one before attention is.

    `ShiftTokens` hides padding where it is told of it, so the fault is its caller's.
    """
    finding = check(language_model(shift_tokens=1)).law("padding.left")
    assert finding.verdict == "violated"
    assert finding.source is not None
    assert finding.source.startswith("Decoder")
