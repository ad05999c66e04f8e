"""A folder that is loaded and saved says again what it said, or says what it drops."""

import json

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from tests.models.cases import GPT2, SHARING, SMALL, T5, VIT

import querykey as qk

LONG = SHARING | {"max_position_embeddings": 4096}
NAMES = {"num_labels": 3, "id2label": {0: "good", 1: "bad", 2: "ugly"}}
FOLDERS = {
    "llama": (hf.LlamaForCausalLM, hf.LlamaConfig(**LONG)),
    "llama-base": (hf.LlamaModel, hf.LlamaConfig(**LONG)),
    "mistral-without-window": (
        hf.MistralForCausalLM, hf.MistralConfig(**LONG, sliding_window=None)
    ),
    "mistral": (hf.MistralForCausalLM, hf.MistralConfig(**LONG, sliding_window=5)),
    "qwen2": (hf.Qwen2ForCausalLM, hf.Qwen2Config(**LONG)),
    "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config(**GPT2)),
    "bert-both-heads": (hf.BertForPreTraining, hf.BertConfig(**SMALL)),
    "bert-untied-heads": (hf.BertForPreTraining, hf.BertConfig(**SMALL, tie_word_embeddings=False)),
    "bert-untied-words": (hf.BertForMaskedLM, hf.BertConfig(**SMALL, tie_word_embeddings=False)),
    "roberta-untied": (hf.RobertaForMaskedLM, hf.RobertaConfig(**SMALL, tie_word_embeddings=False)),
    "bert-classes": (hf.BertForSequenceClassification, hf.BertConfig(**SMALL, **NAMES)),
    "roberta": (hf.RobertaForMaskedLM, hf.RobertaConfig(**SMALL)),
    "xlm-roberta": (hf.XLMRobertaForMaskedLM, hf.XLMRobertaConfig(**SMALL)),
    "xlm-roberta-base": (hf.XLMRobertaModel, hf.XLMRobertaConfig(**SMALL)),
    "camembert": (
        hf.CamembertForSequenceClassification, hf.CamembertConfig(**SMALL, **NAMES)
    ),
    "t5": (hf.T5ForConditionalGeneration, hf.T5Config(**T5)),
    "vit-classes": (hf.ViTForImageClassification, hf.ViTConfig(**VIT, **NAMES)),
}  # fmt: skip
KEPT = ("model_type", "architectures", "max_position_embeddings", "id2label", "label2id")


def entries(folder):
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_comes_back_with_its_type_its_length_its_names_and_every_head(name, tmp_path):
    torch.manual_seed(0)
    model_class, config = FOLDERS[name]
    model_class(config).save_pretrained(tmp_path / "first")
    qk.models.save(qk.models.load(tmp_path / "first"), tmp_path / "second")
    first, second = entries(tmp_path / "first"), entries(tmp_path / "second")
    assert {key: second.get(key) for key in KEPT if key in first} == {
        key: first[key] for key in KEPT if key in first
    }
    before, after = (load_file(tmp_path / x / "model.safetensors") for x in ("first", "second"))
    assert set(before) == set(after)
    _, loading = model_class.from_pretrained(tmp_path / "second", output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]


def test_both_heads_of_pretraining_say_what_transformers_says(tmp_path):
    torch.manual_seed(0)
    theirs = hf.BertForPreTraining(hf.BertConfig(**SMALL)).eval()
    theirs.save_pretrained(tmp_path)
    ids = torch.randint(0, 60, (2, 5))
    with torch.no_grad():
        tokens, classes = qk.models.load(tmp_path)(ids)
        wanted = theirs(ids)
    torch.testing.assert_close(tokens, wanted.prediction_logits)
    torch.testing.assert_close(classes, wanted.seq_relationship_logits)


def test_what_is_dropped_is_said(tmp_path):
    torch.manual_seed(0)
    hf.BertForMaskedLM(hf.BertConfig(**SMALL)).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    more = {
        "cls.seq_relationship.bias": torch.ones(2),
        "bert.embeddings.position_ids": torch.ones(3),
    }
    save_file(load_file(file) | more, file)
    with pytest.warns(UserWarning, match="no place") as said:
        qk.models.load(tmp_path)
    assert [str(warning.message) for warning in said] == [
        f"{tmp_path}: the model of config.json has no place for cls.seq_relationship.bias, so they "
        "are left out"
    ]


@pytest.mark.parametrize("config", [hf.XLMRobertaConfig, hf.CamembertConfig, hf.RobertaConfig])
def test_a_vocabulary_without_a_size_has_that_of_its_own_type(config, tmp_path):
    small = {k: v for k, v in SMALL.items() if k != "vocab_size"} | {"hidden_size": 4}
    hf.AutoModelForMaskedLM.from_config(config(**small)).save_pretrained(tmp_path)
    said = entries(tmp_path)
    said.pop("vocab_size")
    (tmp_path / "config.json").write_text(json.dumps(said))
    model = qk.models.load(tmp_path)
    assert model.config.embedding.vocabulary == config().vocab_size
