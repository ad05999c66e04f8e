"""Models with custom code on top of transformers, as people ship them beside their weights."""

import math
from dataclasses import dataclass

import torch
from tests.laws.strangers.case import Case
from torch import nn
from torch.nn import functional as F
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    SequenceClassifierOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import ModelOutput

# Pebble: learned positions, DynamicCache, one additive mask for all layers.


class PebbleConfig(PretrainedConfig):
    model_type = "pebble"

    def __init__(
        self,
        vocab_size=61,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        attn_pdrop=0.1,
        sliding_window=None,
        num_labels=3,
        use_cache=True,
        tie_word_embeddings=True,
        pad_token_id=0,
        **kwargs,
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.max_position_embeddings = max_position_embeddings
        self.attn_pdrop = attn_pdrop
        self.sliding_window = sliding_window
        self.use_cache = use_cache
        super().__init__(
            pad_token_id=pad_token_id,
            bos_token_id=None,
            eos_token_id=None,
            tie_word_embeddings=tie_word_embeddings,
            num_labels=num_labels,
            **kwargs,
        )


class PebbleAttention(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.num_heads = config.num_attention_heads
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.attn_pdrop = config.attn_pdrop
        self.c_attn = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.c_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def _split_heads(self, tensor):
        batch, length, _ = tensor.shape
        return tensor.view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)

    def _merge_heads(self, tensor):
        batch, _, length, _ = tensor.shape
        return tensor.transpose(1, 2).reshape(batch, length, self.num_heads * self.head_dim)

    def _dropout(self, weights):
        return F.dropout(weights, p=self.attn_pdrop, training=self.training)

    def _cache(self, key, value, past_key_values):
        if past_key_values is None:
            return key, value
        return past_key_values.update(key, value, self.layer_idx)

    def _attn(self, query, key, value, attention_mask):
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(self.head_dim)
        scores = scores + attention_mask
        weights = self._dropout(scores.softmax(dim=-1))
        return torch.matmul(weights, value)

    def forward(self, hidden_states, attention_mask, past_key_values=None):
        query, key, value = self.c_attn(hidden_states).chunk(3, dim=-1)
        query, key, value = (self._split_heads(t) for t in (query, key, value))
        key, value = self._cache(key, value, past_key_values)
        return self.c_proj(self._merge_heads(self._attn(query, key, value, attention_mask)))


class PebbleBlock(nn.Module):
    def __init__(self, config, layer_idx, attention_class):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden_size)
        self.attn = attention_class(config, layer_idx)
        self.ln_2 = nn.LayerNorm(config.hidden_size)
        self.mlp = nn.Sequential(
            nn.Linear(config.hidden_size, 2 * config.hidden_size),
            nn.GELU(),
            nn.Linear(2 * config.hidden_size, config.hidden_size),
        )

    def forward(self, hidden_states, attention_mask, past_key_values=None):
        attended = self.attn(self.ln_1(hidden_states), attention_mask, past_key_values)
        hidden_states = hidden_states + attended
        return hidden_states + self.mlp(self.ln_2(hidden_states))


class PebblePreTrainedModel(PreTrainedModel):
    config_class = PebbleConfig
    base_model_prefix = "transformer"


class PebbleModel(PebblePreTrainedModel):
    attention_class = PebbleAttention

    def __init__(self, config):
        super().__init__(config)
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.wpe = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.h = nn.ModuleList(
            [PebbleBlock(config, i, self.attention_class) for i in range(config.num_hidden_layers)]
        )
        self.ln_f = nn.LayerNorm(config.hidden_size)
        self.post_init()

    def get_input_embeddings(self):
        return self.wte

    def set_input_embeddings(self, value):
        self.wte = value

    def _positions(self, attention_mask, past_length, length, device):
        if attention_mask is not None and attention_mask.dim() == 2:
            position_ids = attention_mask.long().cumsum(-1) - 1
            return position_ids.clamp(min=0)[:, -length:]
        return torch.arange(past_length, past_length + length, device=device).unsqueeze(0)

    def _band(self, query_positions, key_positions):
        """Returns True where the query may look at the key."""
        band = key_positions[None, :] <= query_positions[:, None]
        if self.config.sliding_window is not None:
            near = query_positions[:, None] - key_positions[None, :] < self.config.sliding_window
            band = band & near
        return band

    def _update_causal_mask(self, attention_mask, past_length, length, like):
        total = past_length + length
        keys = torch.arange(total, device=like.device)
        allowed = self._band(keys[past_length:], keys)[None, None]
        if attention_mask is not None:
            allowed = allowed & attention_mask[:, None, None, :total].bool()
        mask = torch.zeros(allowed.shape, dtype=like.dtype, device=like.device)
        return mask.masked_fill(~allowed, torch.finfo(like.dtype).min)

    def _add_positions(self, inputs_embeds, position_ids):
        return inputs_embeds + self.wpe(position_ids)

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        inputs_embeds=None,
        use_cache=None,
    ):
        use_cache = use_cache if use_cache is not None else self.config.use_cache
        if inputs_embeds is None:
            inputs_embeds = self.wte(input_ids)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        past_length = past_key_values.get_seq_length() if past_key_values is not None else 0
        length = inputs_embeds.shape[1]
        if position_ids is None:
            position_ids = self._positions(
                attention_mask, past_length, length, inputs_embeds.device
            )
        causal_mask = self._update_causal_mask(attention_mask, past_length, length, inputs_embeds)
        hidden_states = self._add_positions(inputs_embeds, position_ids)
        for block in self.h:
            hidden_states = block(hidden_states, causal_mask, past_key_values)
        return BaseModelOutputWithPast(
            last_hidden_state=self.ln_f(hidden_states),
            past_key_values=past_key_values if use_cache else None,
        )


class PebbleForCausalLM(PebblePreTrainedModel, GenerationMixin):
    _tied_weights_keys = {"lm_head.weight": "transformer.wte.weight"}  # noqa: RUF012
    model_class = PebbleModel

    def __init__(self, config):
        super().__init__(config)
        self.transformer = self.model_class(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self):
        return self.lm_head

    def _next_positions(self, position_ids, past_length):
        return position_ids

    def prepare_inputs_for_generation(self, input_ids, past_key_values=None, **kwargs):
        inputs = super().prepare_inputs_for_generation(
            input_ids, past_key_values=past_key_values, **kwargs
        )
        past_length = past_key_values.get_seq_length() if past_key_values is not None else 0
        if inputs.get("position_ids") is not None:
            inputs["position_ids"] = self._next_positions(inputs["position_ids"], past_length)
        return inputs

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        inputs_embeds=None,
        labels=None,
        use_cache=None,
        **kwargs,
    ):
        outputs = self.transformer(
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache
        )
        logits = self.lm_head(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            shifted = logits[:, :-1].flatten(0, 1)
            loss = F.cross_entropy(shifted, labels[:, 1:].flatten(), ignore_index=-100)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=outputs.past_key_values
        )


def pebble(model_class=PebbleModel, head_class=PebbleForCausalLM, **overrides):
    head = type(head_class.__name__, (head_class,), {"model_class": model_class})
    return head(PebbleConfig(**overrides))


class PebbleModelMaskGivenByUser(PebbleModel):
    def _update_causal_mask(self, attention_mask, past_length, length, like):
        if attention_mask is not None:
            # the caller has already decided what may be seen
            mask = attention_mask[:, None, None, :].to(like.dtype)
            return (1.0 - mask) * torch.finfo(like.dtype).min
        return super()._update_causal_mask(attention_mask, past_length, length, like)


class PebbleModelBufferMask(PebbleModel):
    def __init__(self, config):
        super().__init__(config)
        size = config.max_position_embeddings
        self.register_buffer("bias", torch.ones(size, size).tril().bool(), persistent=False)

    first_row = 1

    def _update_causal_mask(self, attention_mask, past_length, length, like):
        total = past_length + length
        start = past_length + self.first_row
        allowed = self.bias[start : start + length, :total]
        if attention_mask is not None:
            allowed = allowed & attention_mask[:, None, None, :total].bool()
        else:
            allowed = allowed[None, None]
        mask = torch.zeros(allowed.shape, dtype=like.dtype, device=like.device)
        return mask.masked_fill(~allowed, torch.finfo(like.dtype).min)


class PebbleModelBufferMaskAligned(PebbleModelBufferMask):
    first_row = 0


class PebbleModelFreshPositions(PebbleModel):
    def _positions(self, attention_mask, past_length, length, device):
        if attention_mask is not None:
            attention_mask = attention_mask[:, -length:]
        return super()._positions(attention_mask, 0, length, device)


class PebbleModelPlainPositions(PebbleModel):
    def _positions(self, attention_mask, past_length, length, device):
        return super()._positions(None, past_length, length, device)


class PebbleModelBandBothSides(PebbleModel):
    def _band(self, query_positions, key_positions):
        window = self.config.sliding_window
        distance = query_positions[:, None] - key_positions[None, :]
        if len(key_positions) > window:
            return distance.abs() < window
        return distance >= 0


class PebbleModelAddsInPlace(PebbleModel):
    def _add_positions(self, inputs_embeds, position_ids):
        inputs_embeds += self.wpe(position_ids)
        return inputs_embeds


class PebbleAttentionAlwaysDrops(PebbleAttention):
    def _dropout(self, weights):
        return F.dropout(weights, p=self.attn_pdrop)


class PebbleModelAlwaysDrops(PebbleModel):
    attention_class = PebbleAttentionAlwaysDrops


class PebbleAttentionDetachedCache(PebbleAttention):
    def _cache(self, key, value, past_key_values):
        if past_key_values is None:
            return key, value
        # the cache must not keep the graph of earlier steps alive
        return past_key_values.update(key.detach(), value.detach(), self.layer_idx)


class PebbleModelDetachedCache(PebbleModel):
    attention_class = PebbleAttentionDetachedCache


class PebbleForCausalLMPositionsAhead(PebbleForCausalLM):
    def _next_positions(self, position_ids, past_length):
        # a new token comes after the ones that are in the cache
        return position_ids + 1 if past_length > 0 else position_ids


class PebbleForCausalLMForgotTheTie(PebbleForCausalLM):
    _tied_weights_keys = None


class PebbleForSequenceClassification(PebblePreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.transformer = PebbleModel(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels, bias=False)
        self.post_init()

    def _last_token(self, hidden_states, attention_mask):
        if attention_mask is None:
            return hidden_states[:, -1]
        indices = torch.arange(hidden_states.shape[1], device=hidden_states.device)
        last = (indices * attention_mask.long()).argmax(dim=-1)
        return hidden_states[torch.arange(len(last), device=last.device), last]

    def forward(self, input_ids=None, attention_mask=None, labels=None):
        outputs = self.transformer(input_ids, attention_mask=attention_mask, use_cache=False)
        logits = self.score(self._last_token(outputs.last_hidden_state, attention_mask))
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class PebbleForSequenceClassificationTakesTheEnd(PebbleForSequenceClassification):
    def _last_token(self, hidden_states, attention_mask):
        return hidden_states[:, -1]


def padded_ids(pad):
    ids = torch.tensor([[5, 9, 2, 14, 7, 3, 8], [11, 4, 6, 10, pad, pad, pad]])
    return {"input_ids": ids, "attention_mask": (ids != pad).long()}


# Brook: rotary positions, grouped keys, the older tuples as a cache.


class BrookConfig(PretrainedConfig):
    model_type = "brook"

    def __init__(
        self,
        vocab_size=53,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        query_pre_attn_scalar=2,
        rope_theta=10000.0,
        use_cache=True,
        tie_word_embeddings=False,
        **kwargs,
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.query_pre_attn_scalar = query_pre_attn_scalar
        self.rope_theta = rope_theta
        self.use_cache = use_cache
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)


@dataclass
class BrookOutput(ModelOutput):
    loss: torch.FloatTensor | None = None
    logits: torch.FloatTensor | None = None
    past_key_values: tuple | None = None


class BrookRMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def normalized(self, hidden_states):
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        return hidden_states * torch.rsqrt(variance + self.variance_epsilon)

    def forward(self, hidden_states):
        return self.weight * self.normalized(hidden_states).to(hidden_states.dtype)


class BrookRMSNormStaysInFloat(BrookRMSNorm):
    def forward(self, hidden_states):
        return self.weight * self.normalized(hidden_states)


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def rotate(x, position_ids, theta):
    half = torch.arange(0, x.shape[-1], 2, device=x.device).float() / x.shape[-1]
    angles = position_ids[:, None, :, None].float() * theta**-half
    angles = torch.cat((angles, angles), dim=-1)
    return x * angles.cos().to(x.dtype) + rotate_half(x) * angles.sin().to(x.dtype)


def eager_attention_forward(module, query, key, value, attention_mask, scaling, **kwargs):
    key = key.repeat_interleave(module.num_key_value_groups, dim=1)
    value = value.repeat_interleave(module.num_key_value_groups, dim=1)
    scores = query @ key.transpose(2, 3) * scaling
    scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1)
    return (weights @ value).transpose(1, 2), weights


def eager_attention_forward_of_the_paper(
    module, query, key, value, attention_mask, scaling, **kwargs
):
    scaling = 1 / math.sqrt(module.head_dim)
    return eager_attention_forward(module, query, key, value, attention_mask, scaling, **kwargs)


class BrookAttention(nn.Module):
    eager_forward = staticmethod(eager_attention_forward)

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.num_heads = config.num_attention_heads
        self.num_key_value_heads = config.num_key_value_heads
        self.head_dim = config.hidden_size // self.num_heads
        kv_size = self.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def _heads(self, states, count):
        return states.view(*states.shape[:2], count, self.head_dim).transpose(1, 2)

    def project(self, hidden_states, position_ids):
        query = self._heads(self.q_proj(hidden_states), self.num_heads)
        key = self._heads(self.k_proj(hidden_states), self.num_key_value_heads)
        value = self._heads(self.v_proj(hidden_states), self.num_key_value_heads)
        theta = self.config.rope_theta
        return rotate(query, position_ids, theta), rotate(key, position_ids, theta), value

    def extend(self, key, value, past_key_value):
        if past_key_value is not None:
            key = torch.cat((past_key_value[0], key), dim=2)
            value = torch.cat((past_key_value[1], value), dim=2)
        return key, value, (key, value)

    def attend(self, query, key, value, mask):
        attention_interface = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, self.eager_forward
        )
        scaling = self.config.query_pre_attn_scalar**-0.5
        return attention_interface(self, query, key, value, mask, scaling=scaling)[0]

    def forward(self, hidden_states, mask, position_ids, past_key_value=None):
        query, key, value = self.project(hidden_states, position_ids)
        key, value, present = self.extend(key, value, past_key_value)
        attended = self.attend(query, key, value, mask)
        return self.o_proj(attended.flatten(2)), present


class BrookLayer(nn.Module):
    def __init__(self, config, attention_class, norm_class):
        super().__init__()
        self.input_layernorm = norm_class(config.hidden_size)
        self.self_attn = attention_class(config)
        self.post_attention_layernorm = norm_class(config.hidden_size)
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden_states, mask, position_ids, past_key_value):
        residual = hidden_states
        normed = self.input_layernorm(hidden_states)
        attended, present = self.self_attn(normed, mask, position_ids, past_key_value)
        hidden_states = residual + attended
        normed = self.post_attention_layernorm(hidden_states)
        gated = F.silu(self.gate_proj(normed)) * self.up_proj(normed)
        return hidden_states + self.down_proj(gated), present


class BrookForCausalLM(PreTrainedModel):
    config_class = BrookConfig
    _supports_sdpa = True
    attention_class = BrookAttention
    norm_class = BrookRMSNorm

    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            BrookLayer(config, self.attention_class, self.norm_class)
            for _ in range(config.num_hidden_layers)
        )
        self.norm = self.norm_class(config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed_tokens

    def make_mask(self, attention_mask, past_length, length, device):
        queries = torch.arange(past_length, past_length + length, device=device)
        keys = torch.arange(past_length + length, device=device)
        mask = (queries[:, None] >= keys[None, :])[None, None]
        if attention_mask is not None:
            visible = mask & attention_mask[:, None, None, :].bool()
            # a padded query still sees itself, or softmax has nothing to sum
            mask = visible | (queries[:, None] == keys[None, :])
        return mask

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        labels=None,
        use_cache=None,
    ):
        use_cache = self.config.use_cache if use_cache is None else use_cache
        past_length = 0 if past_key_values is None else past_key_values[0][0].shape[2]
        batch, length = input_ids.shape
        if position_ids is None:
            position_ids = torch.arange(
                past_length, past_length + length, device=input_ids.device
            ).expand(batch, -1)
        mask = self.make_mask(attention_mask, past_length, length, input_ids.device)
        hidden_states = self.embed_tokens(input_ids)
        presents = ()
        for i, layer in enumerate(self.layers):
            past = None if past_key_values is None else past_key_values[i]
            hidden_states, present = layer(hidden_states, mask, position_ids, past)
            presents += (present,)
        logits = self.lm_head(self.norm(hidden_states))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return BrookOutput(
            loss=loss, logits=logits, past_key_values=presents if use_cache else None
        )


class BrookAttentionRotatesTheWholeCache(BrookAttention):
    """Rotates what the cache holds, too, since positions may be packed differently by now."""

    def extend(self, key, value, past_key_value):
        if past_key_value is not None:
            past_key, past_value = past_key_value
            positions = torch.arange(past_key.shape[2], device=key.device)[None]
            past_key = rotate(past_key, positions, self.config.rope_theta)
            past_key_value = (past_key, past_value)
        return super().extend(key, value, past_key_value)


class BrookAttentionPresentIsNew(BrookAttention):
    def extend(self, key, value, past_key_value):
        present = (key, value)
        if past_key_value is not None:
            key = torch.cat((past_key_value[0], key), dim=2)
            value = torch.cat((past_key_value[1], value), dim=2)
        return key, value, present


class BrookAttentionIsCausalFlag(BrookAttention):
    def attend(self, query, key, value, mask):
        if not mask[:, :, -1].all():
            return super().attend(query, key, value, mask)
        # no padding in this batch: let the fused kernel do it
        scale = self.config.query_pre_attn_scalar**-0.5
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale, enable_gqa=True
        ).transpose(1, 2)


class BrookAttentionOwnScale(BrookAttention):
    eager_forward = staticmethod(eager_attention_forward_of_the_paper)


class BrookRotated(BrookForCausalLM):
    attention_class = BrookAttentionRotatesTheWholeCache


class BrookPresent(BrookForCausalLM):
    attention_class = BrookAttentionPresentIsNew


class BrookIsCausal(BrookForCausalLM):
    attention_class = BrookAttentionIsCausalFlag


class BrookOwnScale(BrookForCausalLM):
    attention_class = BrookAttentionOwnScale


class BrookFloatNorm(BrookForCausalLM):
    norm_class = BrookRMSNormStaysInFloat


class BrookMaskOnlyForPrompts(BrookForCausalLM):
    def make_mask(self, attention_mask, past_length, length, device):
        if past_length == 0:
            return super().make_mask(attention_mask, past_length, length, device)
        mask = torch.ones(1, 1, length, past_length + length, dtype=torch.bool, device=device)
        if attention_mask is not None:
            mask = mask & attention_mask[:, None, None, :].bool()
        return mask


class BrookMaskUnderCheckpointing(BrookForCausalLM):
    """Padding was only thought of for evaluation: training batches come packed."""

    def make_mask(self, attention_mask, past_length, length, device):
        if self.training:
            attention_mask = None
        return super().make_mask(attention_mask, past_length, length, device)


# Moss: an encoder with a masked-language-model head and a sentence head.


class MossConfig(PretrainedConfig):
    model_type = "moss-encoder"

    def __init__(
        self,
        vocab_size=47,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        max_position_embeddings=512,
        pad_token_id=1,
        **kwargs,
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.max_position_embeddings = max_position_embeddings
        super().__init__(pad_token_id=pad_token_id, **kwargs)


class MossSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def transpose_for_scores(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).permute(0, 2, 1, 3)

    def forward(self, hidden_states, extended_attention_mask=None):
        query = self.transpose_for_scores(self.query(hidden_states))
        key = self.transpose_for_scores(self.key(hidden_states))
        value = self.transpose_for_scores(self.value(hidden_states))
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        if extended_attention_mask is not None:
            scores = scores + extended_attention_mask
        context = scores.softmax(dim=-1) @ value
        return self.dense(context.permute(0, 2, 1, 3).flatten(2))


class MossLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention = MossSelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size)
        self.intermediate = nn.Linear(config.hidden_size, 2 * config.hidden_size)
        self.output = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.output_norm = nn.LayerNorm(config.hidden_size)

    def forward(self, hidden_states, extended_attention_mask=None):
        attended = self.attention(hidden_states, extended_attention_mask)
        hidden_states = self.attention_norm(hidden_states + attended)
        widened = F.gelu(self.intermediate(hidden_states))
        return self.output_norm(hidden_states + self.output(widened))


class MossEncoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layer = nn.ModuleList([MossLayer(config) for _ in range(config.num_hidden_layers)])

    def forward(self, hidden_states, extended_attention_mask=None):
        for layer in self.layer:
            hidden_states = layer(hidden_states, extended_attention_mask)
        return hidden_states


class MossEncoderMasksOnce(MossEncoder):
    def forward(self, hidden_states, extended_attention_mask=None):
        hidden_states = self.layer[0](hidden_states, extended_attention_mask)
        for layer in self.layer[1:]:
            hidden_states = layer(hidden_states)
        return hidden_states


class MossEncoderWithAdapters(MossEncoder):
    """A small bottleneck after each layer."""

    def __init__(self, config):
        super().__init__(config)
        self.adapters = nn.ModuleList(self.build_adapters(config))

    def build_adapters(self, config):
        return [
            nn.Sequential(nn.Linear(config.hidden_size, 4), nn.ReLU(), nn.Linear(4, 24))
            for _ in range(config.num_hidden_layers)
        ]

    def forward(self, hidden_states, extended_attention_mask=None):
        for layer, adapter in zip(self.layer, self.adapters, strict=True):
            hidden_states = layer(hidden_states, extended_attention_mask)
            hidden_states = hidden_states + adapter(hidden_states)
        return hidden_states


class MossEncoderWithAdapterList(MossEncoderWithAdapters):
    def __init__(self, config):
        MossEncoder.__init__(self, config)
        self.adapters = self.build_adapters(config)


class MossModel(PreTrainedModel):
    config_class = MossConfig
    encoder_class = MossEncoder

    def __init__(self, config):
        super().__init__(config)
        self.word_embeddings = nn.Embedding(
            config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id
        )
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size)
        self.encoder = self.encoder_class(config)
        self.post_init()

    def extended_mask(self, attention_mask, dtype):
        blocked = 1.0 - attention_mask[:, None, None, :].to(dtype)
        return blocked * torch.finfo(dtype).min

    def forward(self, input_ids, attention_mask=None):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        position_ids = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
        embedded = self.word_embeddings(input_ids) + self.position_embeddings(position_ids)
        mask = self.extended_mask(attention_mask, embedded.dtype)
        return BaseModelOutput(last_hidden_state=self.encoder(self.norm(embedded), mask))


class MossModelMultipliesTheMask(MossModel):
    def extended_mask(self, attention_mask, dtype):
        return attention_mask[:, None, None, :].to(dtype) * torch.finfo(dtype).min


class MossModelMinusInfinity(MossModel):
    def extended_mask(self, attention_mask, dtype):
        mask = torch.zeros(attention_mask.shape, dtype=dtype, device=attention_mask.device)
        return mask.masked_fill(attention_mask == 0, float("-inf"))[:, None, None, :]


class MossModelMasksOnce(MossModel):
    encoder_class = MossEncoderMasksOnce


class MossModelAdapters(MossModel):
    encoder_class = MossEncoderWithAdapters


class MossModelAdapterList(MossModel):
    encoder_class = MossEncoderWithAdapterList


class MossForMaskedLM(PreTrainedModel):
    config_class = MossConfig

    def __init__(self, config, model_class=MossModel):
        super().__init__(config)
        self.moss = model_class(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = self.decoder(self.moss(input_ids, attention_mask).last_hidden_state)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits)


class MossForSentences(PreTrainedModel):
    config_class = MossConfig

    def __init__(self, config):
        super().__init__(config)
        self.moss = MossModel(config)
        self.classifier = nn.Linear(config.hidden_size, 5)
        self.post_init()

    def pool(self, hidden_states, attention_mask):
        kept = attention_mask.unsqueeze(-1).to(hidden_states.dtype)
        return (hidden_states * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1)

    def forward(self, input_ids, attention_mask):
        hidden_states = self.moss(input_ids, attention_mask).last_hidden_state
        return SequenceClassifierOutput(
            logits=self.classifier(self.pool(hidden_states, attention_mask))
        )


class MossForSentencesMeanOfAll(MossForSentences):
    def pool(self, hidden_states, attention_mask):
        return (hidden_states * attention_mask.unsqueeze(-1).to(hidden_states.dtype)).mean(dim=1)


def brook(model_class=BrookForCausalLM, attention="eager"):
    return model_class(BrookConfig(attn_implementation=attention))


def moss(model_class=MossModel):
    return MossForMaskedLM(MossConfig(), model_class)


CASES = [
    Case(
        "pebble-user-mask-replaces-causal",
        faulty=lambda: pebble(PebbleModelMaskGivenByUser),
        lawful=pebble,
        laws=("causality.perturb", "causality.gradient", "causality.prefix"),
        module="transformer",
    ),
    Case(
        "pebble-buffer-row-off-by-one",
        faulty=lambda: pebble(PebbleModelBufferMask),
        lawful=lambda: pebble(PebbleModelBufferMaskAligned),
        laws=("causality.perturb", "causality.gradient", "causality.prefix"),
        module="transformer",
    ),
    Case(
        "pebble-window-both-sides-when-long",
        faulty=lambda: pebble(PebbleModelBandBothSides, sliding_window=16),
        lawful=lambda: pebble(sliding_window=16),
        laws=("causality.perturb", "causality.gradient", "causality.prefix"),
        module="transformer",
    ),
    Case(
        "pebble-positions-restart-with-cache",
        faulty=lambda: pebble(PebbleModelFreshPositions),
        lawful=pebble,
        laws=("cache.step", "cache.chunk", "cache.generate"),
        module="transformer",
    ),
    Case(
        "pebble-left-padding-positions",
        faulty=lambda: pebble(PebbleModelPlainPositions),
        lawful=pebble,
        laws=("padding.left",),
        module="transformer",
    ),
    Case(
        "pebble-embeds-changed-in-place",
        faulty=lambda: pebble(PebbleModelAddsInPlace),
        lawful=pebble,
        laws=("purity",),
        module="transformer",
    ),
    Case(
        "pebble-dropout-in-evaluation",
        faulty=lambda: pebble(PebbleModelAlwaysDrops),
        lawful=pebble,
        laws=("determinism",),
        module="transformer.h.*.attn",
    ),
    Case(
        "pebble-cache-detaches",
        faulty=lambda: pebble(PebbleModelDetachedCache),
        lawful=pebble,
        laws=("gradient.reaches",),
        module=("transformer.h.*.attn", "transformer.h.*.attn.c_attn"),
    ),
    Case(
        "pebble-generate-positions-one-ahead",
        faulty=lambda: pebble(head_class=PebbleForCausalLMPositionsAhead),
        lawful=pebble,
        laws=("cache.generate",),
        module="",
    ),
    Case(
        "pebble-not-tied",
        faulty=lambda: pebble(head_class=PebbleForCausalLMForgotTheTie),
        lawful=pebble,
        laws=("tying",),
        module=("lm_head", ""),
    ),
    Case(
        "pebble-classifier-reads-last-column",
        faulty=lambda: (
            PebbleForSequenceClassificationTakesTheEnd(PebbleConfig()),
            padded_ids(0),
        ),
        lawful=lambda: (PebbleForSequenceClassification(PebbleConfig()), padded_ids(0)),
        laws=("padding.right", "padding.gradient"),
        module="",
    ),
    Case(
        "brook-cached-keys-rotated-again",
        faulty=lambda: brook(BrookRotated),
        lawful=brook,
        laws=("cache.step", "cache.chunk", "cache.generate"),
        module="layers.*.self_attn",
    ),
    Case(
        "brook-present-before-concatenation",
        faulty=lambda: brook(BrookPresent),
        lawful=brook,
        laws=("cache.step", "cache.chunk", "cache.generate"),
        module="layers.*.self_attn",
    ),
    Case(
        "brook-is-causal-with-cache",
        faulty=lambda: brook(BrookIsCausal, "sdpa"),
        lawful=lambda: brook(attention="sdpa"),
        laws=("cache.step", "cache.chunk", "cache.generate"),
        module="layers.*.self_attn",
    ),
    Case(
        "brook-no-mask-after-the-prompt",
        faulty=lambda: brook(BrookMaskOnlyForPrompts),
        lawful=brook,
        laws=("cache.chunk",),
        module="",
    ),
    Case(
        "brook-eager-ignores-scaling",
        faulty=lambda: brook(BrookOwnScale),
        lawful=brook,
        laws=("backend.agree",),
        module="layers.*.self_attn",
    ),
    Case(
        "brook-norm-stays-in-float32",
        faulty=lambda: brook(BrookFloatNorm),
        lawful=brook,
        laws=("dtype.agree",),
        module=("layers.*.input_layernorm", "layers.*.post_attention_layernorm", "norm"),
    ),
    Case(
        "brook-padding-ignored-in-training",
        faulty=lambda: brook(BrookMaskUnderCheckpointing),
        lawful=brook,
        laws=("padding.right", "padding.left", "padding.gradient"),
        module="",
    ),
    Case(
        "moss-mask-inverted",
        faulty=lambda: moss(MossModelMultipliesTheMask),
        lawful=moss,
        laws=("padding.right", "padding.left", "padding.gradient"),
        module="moss",
    ),
    Case(
        "moss-mask-for-one-layer",
        faulty=lambda: moss(MossModelMasksOnce),
        lawful=moss,
        laws=("padding.right", "padding.left", "padding.gradient"),
        module="moss.encoder",
    ),
    Case(
        "moss-minus-infinity-row",
        faulty=lambda: moss(MossModelMinusInfinity),
        lawful=moss,
        laws=("masked-row",),
        module=("moss", "moss.encoder.layer.*.attention"),
    ),
    Case(
        "moss-adapters-in-a-list",
        faulty=lambda: moss(MossModelAdapterList),
        lawful=lambda: moss(MossModelAdapters),
        laws=("gradient.reaches",),
        module="moss.encoder",
    ),
    Case(
        "moss-mean-divides-by-padded-length",
        faulty=lambda: (MossForSentencesMeanOfAll(MossConfig()), padded_ids(1)),
        lawful=lambda: (MossForSentences(MossConfig()), padded_ids(1)),
        laws=("padding.right", "padding.left", "padding.gradient"),
        module="",
    ),
]
