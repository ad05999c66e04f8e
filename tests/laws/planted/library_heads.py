"""Models of a user's own that inherit from transformers' PreTrainedModel, each with one fault."""

import torch
from tests.laws.strangers.case import Case
from torch import nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import CausalLMOutputWithPast

WORDS, WIDTH, HEADS = 37, 16, 2


class TinyConfig(PretrainedConfig):
    model_type = "tiny-own"

    def __init__(self, fault="", **kwargs):
        self.fault, self.vocab_size, self.hidden_size = fault, WORDS, WIDTH
        self.num_hidden_layers, self.num_attention_heads = 2, HEADS
        self.max_position_embeddings = 64
        super().__init__(**kwargs)


class TinyLayer(GradientCheckpointingLayer):
    def __init__(self, config, index):
        super().__init__()
        self.config, self.index, self.fault = config, index, config.fault
        self.ln = nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden, bias=None, cache=None):
        parts = self.qkv(self.ln(hidden)).chunk(3, -1)
        q, k, v = (p.unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in parts)
        if cache is not None:
            k, v = cache.update(k, v, self.index)
        if self.config._attn_implementation == "sdpa":
            if self.fault == "sdpa leaves out the padding":
                bias = bias.amax(0, keepdim=True)
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            scores = q @ k.mT / q.size(-1) ** 0.5
            mixed = (scores if bias is None else scores + bias).softmax(-1) @ v
        return hidden + self.proj(mixed.transpose(1, 2).flatten(2))


class TinyForCausalLM(PreTrainedModel):
    config_class = TinyConfig
    supports_gradient_checkpointing = True
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        self.fault = config.fault
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList([TinyLayer(config, i) for i in range(2)])
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.wte

    def forward(
        self, input_ids, attention_mask=None, position_ids=None, past_key_values=None,
        labels=None, use_cache=False, num_items_in_batch=None,
    ):  # fmt: skip
        B, T = input_ids.shape
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        real = attention_mask
        if real is None:
            real = torch.ones(B, past + T, dtype=torch.long, device=input_ids.device)
        if self.fault == "word 3 is never seen":
            real = real.clone()
            real[:, past:] *= input_ids.ne(3)
        if position_ids is None:
            position_ids = (real.long().cumsum(-1) - 1).clamp(min=0)[:, -T:]
        if self.fault == "old padding is seen" and past:
            real = torch.ones_like(real)
        hidden = self.wte(input_ids) + self.wpe(position_ids)
        seen = torch.ones(T, past + T, dtype=torch.bool).tril(past) & real[:, None].bool()
        bias = torch.zeros(seen.shape, dtype=hidden.dtype).masked_fill(~seen, -1e30)[:, None]
        for index, layer in enumerate(self.layers):
            recomputed = layer.gradient_checkpointing and self.training
            if self.fault == "checkpoints lose the bias" and recomputed and index:
                bias = bias[:1].expand_as(bias)
            hidden = layer(hidden, bias=bias, cache=past_key_values)
        logits = self.lm_head(hidden)
        loss = None if labels is None else self.loss_of(logits, labels, num_items_in_batch)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)

    def loss_of(self, logits, labels, count=None):
        flat, wanted = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        if self.fault == "smooths hidden labels":
            logp = flat.log_softmax(-1)
            picked = logp.gather(-1, wanted.clamp(min=0)[:, None])[:, 0]
            hard = -(picked * (wanted != -100))
            return (hard.sum() + 0.1 * -logp.mean(-1).sum()) / (wanted != -100).sum()
        if count is None or self.fault == "takes the count and drops it":
            return functional.cross_entropy(flat, wanted)
        total = functional.cross_entropy(flat, wanted, reduction="sum")
        return total / (count * len(labels) if self.fault == "divides by rows too" else count)


def tiny(fault=""):
    return lambda: TinyForCausalLM(TinyConfig(fault, attn_implementation="eager"))


def case(name, fault, law, module: str | None = ""):
    return Case(name, tiny(fault), tiny(), (law,), module)


CASES = [
    case("own-head-word-3-is-never-seen", "word 3 is never seen", "vocabulary"),
    case("own-head-smooths-hidden-labels", "smooths hidden labels", "loss.padding"),
    case("own-head-drops-the-count", "takes the count and drops it", "accumulation"),
    case("own-head-divides-by-rows-too", "divides by rows too", "accumulation"),
    case("own-head-old-padding-is-seen", "old padding is seen", "cache.padded"),
    case("own-head-checkpoints-lose-the-bias", "checkpoints lose the bias", "paths.checkpoint",
         None),
    case("own-head-sdpa-without-padding", "sdpa leaves out the padding", "paths.backend", None),
]  # fmt: skip
