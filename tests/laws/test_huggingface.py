"""No alarm on architectures that are right, and the true one on some that are not."""

import re

import pytest

from querykey.laws import check

pytest.importorskip("transformers")

LAWFUL = ["gpt2", "llama", "distilbert", "t5", "mamba2"]
MORE = [
    "mistral", "qwen2", "qwen3", "gemma2", "phi3", "olmo2", "opt", "gpt_neox", "falcon", "mixtral",
    "electra", "bert", "roberta:masked", "deberta-v2", "modernbert", "bloom", "mt5", "qwen3_next",
]  # fmt: skip
# Heads that take num_items_in_batch among their **kwargs and drop it: transformers 47688.
DROPS_THE_COUNT = {"distilbert", "t5", "electra", "bert", "roberta:masked", "deberta-v2", "mt5"}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWFUL)
def test_a_lawful_architecture_raises_no_alarm(name):
    report = check(f"hf:{name}")
    broken = [f.law for f in report.laws if f.verdict in ("violated", "error", "tie")]
    assert broken == ["accumulation"] * (name in DROPS_THE_COUNT)


@pytest.mark.full
@pytest.mark.parametrize("name", MORE)
def test_more_lawful_architectures_raise_no_alarm(name):
    report = check(f"hf:{name}")
    broken = [f.law for f in report.laws if f.verdict in ("violated", "error", "tie")]
    assert broken == ["accumulation"] * (name in DROPS_THE_COUNT)


@pytest.mark.slow
def test_positions_that_restart_at_the_cache_are_found_and_the_maker_is_blamed():
    finding = check("hf:bamba", laws=["cache.step"]).law("cache.step")
    assert finding.verdict == "violated"
    assert finding.module == "model"
    assert "modeling_bamba.py" in (finding.source or "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert:masked", "t5"])
def test_a_head_that_drops_the_count_of_tokens_is_told_with_the_ratio(name):
    finding = check(f"hf:{name}", laws=["accumulation"]).law("accumulation")
    assert finding.verdict == "violated"
    told = re.search(r"accumulating 3 rows trains with (\S+) times the loss", finding.note)
    assert told
    # Each row gives the mean of its own tokens, where its share of all three was asked for.
    assert float(told[1]) == pytest.approx(3, rel=0.1)


@pytest.mark.slow
def test_a_causal_head_that_does_not_shift_its_labels_is_told():  # transformers 27517
    assert check("hf:bart:causal", laws=["loss.shift"]).law("loss.shift").verdict == "violated"
    assert check("hf:gpt2", laws=["loss.shift"]).law("loss.shift").verdict == "holds"


@pytest.mark.slow
def test_a_limitation_has_its_reason():
    finding = check("hf:bart:causal", laws=["padding.left"]).law("padding.left")
    assert finding.verdict == "limitation"
    assert "padded on the right" in finding.note


@pytest.mark.slow
def test_a_single_token_of_a_target_that_sees_padding_is_told():  # modeling_led.py:1647
    assert check("hf:led:seq2seq", laws=["cache.step"]).law("cache.step").verdict == "violated"


@pytest.mark.slow
def test_a_cache_that_keeps_a_window_which_one_call_lacks_is_told():  # modeling_moshi.py:775
    assert check("hf:moshi:causal", laws=["cache.step"]).law("cache.step").verdict == "violated"


@pytest.mark.slow
def test_a_projection_as_wide_as_the_vocabulary_is_no_table_of_words():
    """Its queries have 128 features, and there are 128 words."""
    finding = check("hf:deepseek_v3:causal", laws=["vocabulary"]).law("vocabulary")
    assert finding.verdict == "holds", finding.note
