"""No alarm on architectures that are right, and the true one on some that are not."""

import pytest

from querykey.laws import check

pytest.importorskip("transformers")

LAWFUL = ["gpt2", "llama", "distilbert", "t5", "mamba2"]
MORE = [
    "mistral", "qwen2", "qwen3", "gemma2", "phi3", "olmo2", "opt", "gpt_neox", "falcon", "mixtral",
    "electra", "bert", "roberta:masked", "deberta-v2", "modernbert", "bloom", "mt5", "qwen3_next",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWFUL)
def test_a_lawful_architecture_raises_no_alarm(name):
    report = check(f"hf:{name}")
    assert [f for f in report.laws if f.verdict in ("violated", "error", "tie")] == []


@pytest.mark.full
@pytest.mark.parametrize("name", MORE)
def test_more_lawful_architectures_raise_no_alarm(name):
    report = check(f"hf:{name}")
    assert [f for f in report.laws if f.verdict in ("violated", "error", "tie")] == []


@pytest.mark.slow
def test_positions_that_restart_at_the_cache_are_found_and_the_maker_is_blamed():
    finding = check("hf:bamba", laws=["cache.step"]).law("cache.step")
    assert finding.verdict == "violated"
    assert finding.module == "model"
    assert "modeling_bamba.py" in (finding.source or "")


@pytest.mark.slow
def test_a_limitation_has_its_reason():
    finding = check("hf:bart:causal", laws=["padding.left"]).law("padding.left")
    assert finding.verdict == "limitation"
    assert "padded on the right" in finding.note
