"""Tiny random models of `transformers`, weights large enough that a mistake shows."""

import contextlib

import torch
import transformers as hf
from torch.overrides import TorchFunctionMode

SMALL = {
    "vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 40,
    "num_attention_heads": 4, "max_position_embeddings": 48,
}  # fmt: skip
SHARING = SMALL | {"num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": 1}
GPT2 = {
    "vocab_size": 61, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 48,
    "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
T5 = {
    "vocab_size": 61, "d_model": 24, "d_kv": 7, "d_ff": 40, "num_layers": 2, "num_heads": 3,
    "num_decoder_layers": 3, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 11, "decoder_start_token_id": 0,
}  # fmt: skip
VIT = {k: SMALL[k] for k in SMALL if k not in ("vocab_size", "max_position_embeddings")} | {
    "image_size": 12, "patch_size": 4,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}
YARN = {
    "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
    "original_max_position_embeddings": 12,
}  # fmt: skip

DECODERS = {
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2)),
    "gpt2-relu": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(**GPT2, n_inner=31, activation_function="relu", scale_attn_weights=False)
    ),
    "gpt2-untied": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2, tie_word_embeddings=False)),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SHARING)),
    "llama-tied": lambda: hf.LlamaForCausalLM(
        hf.LlamaConfig(
            **SHARING, tie_word_embeddings=True, head_dim=10, attention_bias=True, mlp_bias=True
        )
    ),
    "llama-3": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SHARING, rope_parameters=LLAMA3)),
    "llama-linear": lambda: hf.LlamaForCausalLM(
        hf.LlamaConfig(**SHARING | {"num_key_value_heads": 1}, rope_parameters=LINEAR)
    ),
    "llama-yarn": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SHARING, rope_parameters=YARN)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**SHARING, sliding_window=4)),
    "mistral-full": lambda: hf.MistralForCausalLM(hf.MistralConfig(**SHARING, sliding_window=None)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**SHARING)),
    "qwen2-windows": lambda: hf.Qwen2ForCausalLM(
        hf.Qwen2Config(**SHARING, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    ),
    "qwen2-mixed": lambda: hf.Qwen2ForCausalLM(
        hf.Qwen2Config(
            **SHARING | {"num_hidden_layers": 3},
            use_sliding_window=True,
            sliding_window=4,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        )
    ),
}
BASES = {
    "gpt2-base": lambda: hf.GPT2Model(hf.GPT2Config(**GPT2)),
    "llama-base": lambda: hf.LlamaModel(hf.LlamaConfig(**SHARING)),
}
ENCODERS = {
    "bert": lambda: hf.BertModel(hf.BertConfig(**SMALL)),
    "bert-unpooled": lambda: hf.BertModel(hf.BertConfig(**SMALL), add_pooling_layer=False),
    "bert-masked": lambda: hf.BertForMaskedLM(hf.BertConfig(**SMALL)),
    "bert-untied": lambda: hf.BertForMaskedLM(hf.BertConfig(**SMALL, tie_word_embeddings=False)),
    "bert-classes": lambda: hf.BertForSequenceClassification(
        hf.BertConfig(**SMALL, num_labels=5, hidden_act="gelu_new")
    ),
    "roberta": lambda: hf.RobertaModel(hf.RobertaConfig(**SMALL)),
    "roberta-masked": lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**SMALL)),
    "roberta-classes": lambda: hf.RobertaForSequenceClassification(
        hf.RobertaConfig(**SMALL, num_labels=3)
    ),
    "t5-encoder": lambda: hf.T5EncoderModel(hf.T5Config(**T5)),
}
PAIRS = {
    "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5)),
    "t5-gated": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    ),
}
IMAGES = {
    "vit": lambda: hf.ViTModel(hf.ViTConfig(**VIT)),
    "vit-classes": lambda: hf.ViTForImageClassification(
        hf.ViTConfig(**VIT, num_labels=5, qkv_bias=False)
    ),
    "vit-oblong": lambda: hf.ViTModel(
        hf.ViTConfig(**VIT | {"image_size": [12, 8], "patch_size": [4, 2]}),
        add_pooling_layer=False,
    ),
}


class Lift(TorchFunctionMode):
    """Turn every request for float32 into one for float64."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.float:
            return args[0].double()
        args = [torch.float64 if value is torch.float32 else value for value in args]
        kwargs = {
            key: torch.float64 if value is torch.float32 else value
            for key, value in (kwargs or {}).items()
        }
        return function(*args, **kwargs)


@contextlib.contextmanager
def lifted(on=True):
    """Build and run models in float64 throughout."""
    if not on:
        yield
        return
    torch.set_default_dtype(torch.float64)
    try:
        with Lift():
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def made(make, gain=1.2, seed=0):
    """Build a model and draw its weights anew: matrices of that gain, vectors near their start."""
    model = make().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            fresh = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            if parameter.ndim > 1:
                parameter.copy_(fresh * gain / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(fresh * 0.1)
    return model


def token_ids(batch=3, length=11, low=2, seed=0):
    return torch.randint(low, 61, (batch, length), generator=torch.Generator().manual_seed(seed))


def padded(length, counts, side):
    """Which tokens are real, (rows, length), for rows with so many of them."""
    place = torch.arange(length)
    counts = torch.tensor(counts)[:, None]
    return place >= length - counts if side == "left" else place < counts
