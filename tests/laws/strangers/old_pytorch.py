"""Code of 2018: clones(), 0/1 masks, (time, batch, feature) tensors, incremental_state, lengths."""

import copy
import math
from argparse import Namespace

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from tests.laws.strangers.case import Case
from torch.autograd import Variable
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

# ---------------------------------------------------------------------------
# The transformer, line by line (batch first, masks are bytes: 1 is visible).


def clones(module, N):
    "Produce N identical layers."
    return nn.ModuleList([copy.deepcopy(module) for _ in range(N)])


def subsequent_mask(size):
    "Mask out subsequent positions."
    attn_shape = (1, size, size)
    mask = np.triu(np.ones(attn_shape), k=1).astype("uint8")
    return (torch.from_numpy(mask) == 0).byte()


def strict_subsequent_mask(size):
    "Mask out subsequent positions."
    attn_shape = (1, size, size)
    mask = np.triu(np.ones(attn_shape), k=0).astype("uint8")
    return (torch.from_numpy(mask) == 0).byte()


def attention(query, key, value, mask=None, dropout=None):
    "Compute 'Scaled Dot Product Attention'"
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
    p_attn = F.softmax(scores, dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


def byte_attention(query, key, value, mask=None, dropout=None):
    "Compute 'Scaled Dot Product Attention'"
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        hidden = ~mask  # `1 - mask` before version 1.2
        scores = scores.masked_fill(hidden.bool(), torch.finfo(scores.dtype).min)
    p_attn = F.softmax(scores, dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


class LayerNorm(nn.Module):
    "Construct a layernorm module (See citation for details)."

    def __init__(self, features, eps=1e-6):
        super(LayerNorm, self).__init__()  # noqa: UP008
        self.a_2 = nn.Parameter(torch.ones(features))
        self.b_2 = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2


class SublayerConnection(nn.Module):
    "A residual connection followed by a layer norm."

    def __init__(self, size, dropout):
        super().__init__()
        self.norm = LayerNorm(size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, sublayer):
        return x + self.dropout(sublayer(self.norm(x)))


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.1, function=attention):
        "Take in model size and number of heads."
        super().__init__()
        assert d_model % h == 0
        self.d_k = d_model // h
        self.h = h
        self.linears = clones(nn.Linear(d_model, d_model), 4)
        self.attn = None
        self.function = function
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)  # Same mask applied to all h heads.
        nbatches = query.size(0)
        query, key, value = (
            lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value))  # noqa: B905
        )
        x, self.attn = self.function(query, key, value, mask=mask, dropout=self.dropout)
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.linears[-1](x)


class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_model, d_ff, dropout=0.1):
        super().__init__()
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)
        self.p = dropout
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.w_2(self.dropout(F.relu(self.w_1(x))))


class FreshDropoutFeedForward(PositionwiseFeedForward):
    def forward(self, x):
        return self.w_2(nn.Dropout(self.p)(F.relu(self.w_1(x))))


class Embeddings(nn.Module):
    def __init__(self, d_model, vocab):
        super().__init__()
        self.lut = nn.Embedding(vocab, d_model)
        self.d_model = d_model

    def forward(self, x):
        return self.lut(x) * math.sqrt(self.d_model)


class PositionalEncoding(nn.Module):
    "Implement the PE function."

    def __init__(self, d_model, max_len=200):
        super().__init__()
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len).unsqueeze(1).float()
        div_term = torch.exp(torch.arange(0, d_model, 2).float() * -(math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        return x + Variable(self.pe[:, : x.size(1)], requires_grad=False)


class RowPositionalEncoding(PositionalEncoding):
    def __init__(self, d_model, max_len=200):
        super().__init__(d_model, max_len)
        self.pe = self.pe.transpose(0, 1)

    def forward(self, x):
        return x + Variable(self.pe[: x.size(0), :], requires_grad=False)


class DataPositionalEncoding(PositionalEncoding):
    def forward(self, x):
        return Variable(x.data + self.pe[:, : x.size(1)].data)


def make_positions(tokens, padding_idx):
    """Replace non-padding symbols with their position numbers, which begin at padding_idx+1."""
    mask = tokens.ne(padding_idx).long()
    return torch.cumsum(mask, dim=1) * mask + padding_idx


class CountedEmbeddings(Embeddings):
    "Words and the positions of those that are not padding."

    def __init__(self, d_model, vocab, pad=0):
        super().__init__(d_model, vocab)
        self.pad = pad
        self.register_buffer("pe", PositionalEncoding(d_model).pe[0])

    def forward(self, x):
        return super().forward(x) + self.pe[make_positions(x, self.pad)]


class Layer(nn.Module):
    "Self-attn and feed forward, with attention to a source if there is one"

    def __init__(self, size, self_attn, feed_forward, src_attn=None, dropout=0.1):
        super().__init__()
        self.self_attn, self.feed_forward, self.src_attn = self_attn, feed_forward, src_attn
        self.sublayer = clones(SublayerConnection(size, dropout), 2 if src_attn is None else 3)

    def forward(self, x, mask, memory=None, src_mask=None):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))
        if self.src_attn is not None:
            x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))
        return self.sublayer[-1](x, self.feed_forward)


class UnmaskedSourceLayer(Layer):
    def forward(self, x, mask, memory=None, src_mask=None):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))
        x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory))
        return self.sublayer[2](x, self.feed_forward)


class AnnotatedLM(nn.Module):
    "A stack of layers between an embedding and a generator."

    pad = 0

    def __init__(
        self,
        vocab=33,
        N=2,
        d_model=16,
        h=4,
        function=attention,
        feed_forward=PositionwiseFeedForward,
        positions=PositionalEncoding,
    ):
        super().__init__()
        c = copy.deepcopy
        attn = MultiHeadedAttention(h, d_model, function=function)
        self.embed = self.make_embedding(d_model, vocab, positions)
        self.layers = clones(Layer(d_model, c(attn), feed_forward(d_model, 32)), N)
        self.norm = LayerNorm(d_model)
        self.proj = nn.Linear(d_model, vocab)

    def make_embedding(self, d_model, vocab, positions):
        return nn.Sequential(Embeddings(d_model, vocab), positions(d_model))

    def make_std_mask(self, tgt):
        "Create a mask to hide future words."
        return subsequent_mask(tgt.size(-1)).to(tgt.device)

    def forward(self, tgt):
        mask = self.make_std_mask(tgt)
        x = self.embed(tgt)
        for layer in self.layers:
            x = layer(x, mask)
        return F.log_softmax(self.proj(self.norm(x)), dim=-1)


class StrictLM(AnnotatedLM):
    def make_std_mask(self, tgt):
        return strict_subsequent_mask(tgt.size(-1)).to(tgt.device)


class PaddedLM(AnnotatedLM):
    def make_embedding(self, d_model, vocab, positions):
        return CountedEmbeddings(d_model, vocab, self.pad)

    def make_std_mask(self, tgt):
        "Create a mask to hide padding and future words."
        size = tgt.size(-1)
        mask = (tgt != self.pad).unsqueeze(-2).byte() & subsequent_mask(size).to(tgt.device)
        return mask | torch.eye(size, device=tgt.device).byte()  # a padded word sees itself


class EitherMaskLM(PaddedLM):
    def make_std_mask(self, tgt):
        mask = (tgt != self.pad).unsqueeze(-2).byte()
        return mask | subsequent_mask(tgt.size(-1)).to(tgt.device)


class AnnotatedSeq2Seq(nn.Module):
    "A standard Encoder-Decoder architecture; 0 is padding."

    def __init__(self, layer=Layer, vocab=29, N=2, d_model=16, h=4):
        super().__init__()
        c = copy.deepcopy
        attn = MultiHeadedAttention(h, d_model)
        ff = PositionwiseFeedForward(d_model, 32)
        self.src_embed = CountedEmbeddings(d_model, vocab)
        self.tgt_embed = CountedEmbeddings(d_model, vocab)
        self.encoder = clones(Layer(d_model, c(attn), c(ff)), N)
        self.decoder = clones(layer(d_model, c(attn), c(ff), src_attn=c(attn)), N)
        self.norm = clones(LayerNorm(d_model), 2)
        self.generator = nn.Linear(d_model, vocab)

    def make_tgt_mask(self, tgt):
        mask = (tgt != 0).unsqueeze(-2).byte() & subsequent_mask(tgt.size(-1)).to(tgt.device)
        return mask | torch.eye(tgt.size(-1), device=tgt.device).byte()

    def forward(self, src, tgt):
        "Take in and process masked src and target sequences."
        src_mask = (src != 0).unsqueeze(-2).byte()
        memory = self.src_embed(src)
        for layer in self.encoder:
            memory = layer(memory, src_mask)
        memory = self.norm[0](memory)
        x, mask = self.tgt_embed(tgt), self.make_tgt_mask(tgt)
        for layer in self.decoder:
            x = layer(x, mask, memory, src_mask)
        return self.generator(self.norm[1](x))


class PadOnlySeq2Seq(AnnotatedSeq2Seq):
    def make_tgt_mask(self, tgt):
        return (tgt != 0).unsqueeze(-2).byte()


def seq2seq(cls=AnnotatedSeq2Seq, **kwargs):
    example = {"src": torch.randint(1, 29, (3, 9)), "tgt": torch.randint(1, 29, (3, 7))}
    return cls(**kwargs), example


# ---------------------------------------------------------------------------
# A sequence toolkit: (time, batch, feature) inside, pads in the ids, incremental_state.


class MultiheadAttention(nn.Module):
    """Multi-headed attention over (time, batch, channel)."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def fold(self, x, bsz):
        return x.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)

    def state_key(self):
        return f"{id(self)}.attn_state"

    def extend(self, k, v, incremental_state):
        key = self.state_key()
        if key in incremental_state:
            prev_k, prev_v = (t[:, : incremental_state["start"]] for t in incremental_state[key])
            k, v = torch.cat((prev_k, k), dim=1), torch.cat((prev_v, v), dim=1)
        incremental_state[key] = (k, v)
        return k, v

    def forward(self, query, key_padding_mask=None, attn_mask=None, incremental_state=None):
        tgt_len, bsz, _ = query.size()
        q, k, v = F.linear(query, self.in_proj_weight).chunk(3, dim=-1)
        q, k, v = self.fold(q * self.scaling, bsz), self.fold(k, bsz), self.fold(v, bsz)
        if incremental_state is not None:
            k, v = self.extend(k, v, incremental_state)
        weights = torch.bmm(q, k.transpose(1, 2))
        if key_padding_mask is not None:
            weights = weights.view(bsz, self.num_heads, tgt_len, -1)
            hidden = key_padding_mask.unsqueeze(1).unsqueeze(2)
            weights = weights.masked_fill(hidden, torch.finfo(weights.dtype).min)
            weights = weights.view(bsz * self.num_heads, tgt_len, -1)
        if attn_mask is not None:
            weights = weights + attn_mask.unsqueeze(0)
        attn = torch.bmm(F.softmax(weights, dim=-1), v)
        attn = attn.transpose(0, 1).contiguous().view(tgt_len, bsz, self.embed_dim)
        return self.out_proj(attn)


class ViewedMultiheadAttention(MultiheadAttention):
    def fold(self, x, bsz):
        return x.contiguous().view(bsz * self.num_heads, -1, self.head_dim)


class SharedStateMultiheadAttention(MultiheadAttention):
    def state_key(self):
        return f"{self.__class__.__name__}.attn_state"


class BatchAxisNorm(nn.LayerNorm):
    def forward(self, x):
        mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True, unbiased=False)
        return (x - mean) / (std + self.eps) * self.weight + self.bias


class TransformerLayer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.self_attn = args.attention(args.embed_dim, args.heads)
        self.layer_norms = nn.ModuleList([args.norm(args.embed_dim) for _ in range(2)])
        self.fc1 = nn.Linear(args.embed_dim, 2 * args.embed_dim)
        self.fc2 = nn.Linear(2 * args.embed_dim, args.embed_dim)

    def forward(self, x, **kwargs):
        x = x + self.self_attn(self.layer_norms[0](x), **kwargs)
        return x + self.fc2(F.relu(self.fc1(self.layer_norms[1](x))))


def base_architecture(**overrides):
    defaults = {
        "vocab": 37,
        "padding_idx": 1,
        "embed_dim": 20,
        "heads": 2,
        "layers": 2,
        "attention": MultiheadAttention,
        "norm": nn.LayerNorm,
        "share_decoder_input_output_embed": True,
    }
    return Namespace(**{**defaults, **overrides})


class ToolkitModel(nn.Module):
    """What encoder and decoder share: embeddings, positions, layers."""

    def __init__(self, **overrides):
        super().__init__()
        self.args = args = base_architecture(**overrides)
        self.padding_idx = args.padding_idx
        self.embed_tokens = nn.Embedding(args.vocab, args.embed_dim, args.padding_idx)
        self.embed_positions = nn.Embedding(200, args.embed_dim, args.padding_idx)
        self.layers = nn.ModuleList([TransformerLayer(args) for _ in range(args.layers)])

    def positions(self, tokens):
        return make_positions(tokens, self.padding_idx)

    def embed(self, tokens):
        x = self.embed_tokens(tokens) + self.embed_positions(self.positions(tokens))
        return x.transpose(0, 1)  # B x T x C -> T x B x C


class ToolkitEncoder(ToolkitModel):
    def __init__(self, **overrides):
        super().__init__(**overrides)
        self.output = nn.Linear(self.args.embed_dim, 9)

    def run_layers(self, x, padding_mask):
        for layer in self.layers:
            x = layer(x, key_padding_mask=padding_mask)
        return x

    def forward(self, src_tokens):
        x = self.run_layers(self.embed(src_tokens), src_tokens.eq(self.padding_idx))
        return self.output(x).transpose(0, 1)


class ZeroedPadsEncoder(ToolkitEncoder):
    def run_layers(self, x, padding_mask):
        if padding_mask.any():
            x = x * (1 - padding_mask.transpose(0, 1).unsqueeze(-1).type_as(x))
        for layer in self.layers:
            x = layer(x)
        return x


class CountedPositionsEncoder(ToolkitEncoder):
    def positions(self, tokens):
        start = self.padding_idx + 1
        return torch.arange(start, start + tokens.size(1), device=tokens.device).expand_as(tokens)


class ToolkitDecoder(ToolkitModel):
    """Tokens of the whole prefix come in; with incremental_state only the new ones are computed."""

    def __init__(self, **overrides):
        super().__init__(**overrides)
        self._future_mask = torch.empty(0)
        self.build_output()

    def build_output(self):
        if self.args.share_decoder_input_output_embed:
            self.embed_out = self.embed_tokens.weight
        else:
            self.embed_out = nn.Parameter(torch.randn(self.args.vocab, self.args.embed_dim))

    def buffered_future_mask(self, x, total):
        if self._future_mask.size(0) < total or self._future_mask.dtype != x.dtype:
            ones = torch.full((total, total), float("-inf"), dtype=x.dtype, device=x.device)
            self._future_mask = torch.triu(ones, 1)
        return self._future_mask[total - x.size(0) : total, :total]

    def new_embeddings(self, prev_output_tokens, start):
        return self.embed(prev_output_tokens)[start:]

    def forward(self, prev_output_tokens, incremental_state=None):
        total, start = prev_output_tokens.size(1), 0
        if incremental_state is not None:
            start = incremental_state.get("length", 0)
            incremental_state["start"], incremental_state["length"] = start, total
        x = self.new_embeddings(prev_output_tokens, start)
        for layer in self.layers:
            x = layer(
                x,
                key_padding_mask=prev_output_tokens.eq(self.padding_idx),
                attn_mask=self.buffered_future_mask(x, total),
                incremental_state=incremental_state,
            )
        return F.linear(x.transpose(0, 1), self.embed_out), {"inner": x}


class NewTokensOnlyDecoder(ToolkitDecoder):
    def new_embeddings(self, prev_output_tokens, start):
        return self.embed(prev_output_tokens[:, start:])


class CopiedEmbeddingDecoder(ToolkitDecoder):
    def build_output(self):
        if self.args.share_decoder_input_output_embed:
            self.embed_out = nn.Parameter(self.embed_tokens.weight.data.clone())


class StaleMaskDecoder(ToolkitDecoder):
    def buffered_future_mask(self, x, total):
        if self._future_mask.size(0) < total or self._future_mask.dtype != x.dtype:
            ones = torch.full((total, total), float("-inf"), dtype=x.dtype, device=x.device)
            self._future_mask = torch.triu(ones, 1)
        return self._future_mask[-x.size(0) :, :total]


# ---------------------------------------------------------------------------
# The word language model: torch's encoder layers, (time, batch) ids.


class WordLM(nn.Module):
    def __init__(self, ntoken=31, ninp=16, nhead=2, nhid=24, nlayers=2):
        super().__init__()
        self.src_mask = None
        self.encoder = nn.Embedding(ntoken, ninp)
        self.pos = nn.Embedding(200, ninp)
        layer = nn.TransformerEncoderLayer(ninp, nhead, nhid, dropout=0.0)
        self.transformer_encoder = nn.TransformerEncoder(layer, nlayers, enable_nested_tensor=False)
        self.ninp = ninp
        self.decoder = nn.Linear(ninp, ntoken)

    def _generate_square_subsequent_mask(self, sz):
        mask = (torch.triu(torch.ones(sz, sz)) == 1).transpose(0, 1)
        return mask.float().masked_fill(mask == 0, float("-inf")).masked_fill(mask == 1, 0.0)

    def mask_for(self, src):
        if self.src_mask is None or self.src_mask.size(0) != src.size(0):
            self.src_mask = self._generate_square_subsequent_mask(src.size(0))
        return self.src_mask

    def forward(self, src):
        x = self.encoder(src) * math.sqrt(self.ninp)
        x = x + self.pos(torch.arange(src.size(0), device=src.device)).unsqueeze(1)
        mask = self.mask_for(src).to(x)
        return self.decoder(self.transformer_encoder(x, mask))


class HalfFilledWordLM(WordLM):
    def _generate_square_subsequent_mask(self, sz):
        mask = (torch.triu(torch.ones(sz, sz)) == 1).transpose(0, 1)
        return mask.float().masked_fill(mask == 0, 0.0).masked_fill(mask == 1, 1.0)


# ---------------------------------------------------------------------------
# A tagger with an LSTM below self-attention; the batch comes with its lengths.


class LengthTagger(nn.Module):
    def __init__(self, vocab=41, dim=14, hidden=9, tags=6):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.rnn = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.score = nn.Linear(2 * hidden, 2 * hidden)
        self.last = nn.Linear(2 * hidden, 2 * hidden)
        self.tag = nn.Linear(4 * hidden, tags)

    def run_rnn(self, x, lengths):
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=x.size(1))[0]

    def visible(self, lengths, size):
        return torch.arange(size, device=lengths.device)[None, :] < lengths[:, None]

    def last_index(self, lengths):
        return lengths - 1

    def forward(self, tokens, lengths):
        x = self.run_rnn(self.embedding(tokens), lengths)
        scores = torch.bmm(self.score(x), x.transpose(1, 2)) / math.sqrt(x.size(-1))
        mask = self.visible(lengths, tokens.size(1)).unsqueeze(1)
        scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
        context = torch.bmm(F.softmax(scores, dim=-1), x)
        rows = torch.arange(tokens.size(0), device=tokens.device)
        context = context + self.last(x[rows, self.last_index(lengths)]).unsqueeze(1)
        return self.tag(torch.cat((x, context), dim=-1))


class UnpackedTagger(LengthTagger):
    def run_rnn(self, x, lengths):
        return self.rnn(x)[0]


class OnePadVisibleTagger(LengthTagger):
    def visible(self, lengths, size):
        return torch.arange(size, device=lengths.device)[None, :] <= lengths[:, None]


class InPlaceLengthTagger(LengthTagger):
    def last_index(self, lengths):
        return lengths.sub_(1)


class UnsortedTagger(LengthTagger):
    def run_rnn(self, x, lengths):
        lengths, order = lengths.sort(descending=True)
        packed = pack_padded_sequence(x[order], lengths.cpu(), batch_first=True)
        return pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=x.size(1))[0]


def with_lengths(cls):
    tokens = torch.randint(1, 41, (3, 10))
    return cls(), {"tokens": tokens, "lengths": torch.tensor([6, 10, 8])}


# ---------------------------------------------------------------------------

LEAK = ("causality.perturb", "causality.gradient", "causality.prefix")
ROWS = ("batch.alone", "batch.others")
PADS = ("padding.right", "padding.left", "padding.gradient")
STEP = ("cache.step", "cache.chunk")

CASES = [
    Case("triu-from-the-diagonal", StrictLM, AnnotatedLM, LEAK, ("", "layers.*.self_attn")),
    Case("pad-or-future", EitherMaskLM, PaddedLM, LEAK, ("", "layers.*.self_attn")),
    Case(
        "byte-mask-inverted-bitwise",
        lambda: AnnotatedLM(function=byte_attention),
        AnnotatedLM,
        LEAK,
        "layers.*.self_attn",
    ),
    Case(
        "dropout-made-in-forward",
        lambda: AnnotatedLM(feed_forward=FreshDropoutFeedForward),
        AnnotatedLM,
        ("determinism",),
        "layers.*.feed_forward",
    ),
    Case(
        "positions-by-row",
        lambda: AnnotatedLM(positions=RowPositionalEncoding),
        AnnotatedLM,
        ROWS,
        "embed.1",
    ),
    Case(
        "variable-of-data",
        lambda: AnnotatedLM(positions=DataPositionalEncoding),
        AnnotatedLM,
        ("gradient.reaches",),
        ("embed.1", "embed.0.lut", "embed.0", "embed"),
    ),
    Case("target-sees-future", lambda: seq2seq(PadOnlySeq2Seq), seq2seq, LEAK, ""),
    Case(
        "source-pads-seen",
        lambda: seq2seq(layer=UnmaskedSourceLayer),
        seq2seq,
        PADS,
        "decoder.*",
    ),
    Case(
        "heads-viewed-not-transposed",
        lambda: ToolkitDecoder(attention=ViewedMultiheadAttention),
        ToolkitDecoder,
        (*ROWS, *LEAK),
        "layers.*.self_attn",
    ),
    Case(
        "norm-over-rows",
        lambda: ToolkitDecoder(norm=BatchAxisNorm),
        ToolkitDecoder,
        ROWS,
        "layers.*.layer_norms.*",
    ),
    Case(
        "layers-share-their-state",
        lambda: ToolkitDecoder(attention=SharedStateMultiheadAttention),
        ToolkitDecoder,
        STEP,
        "layers.*.self_attn",
    ),
    Case("positions-of-new-tokens-only", NewTokensOnlyDecoder, ToolkitDecoder, STEP, ""),
    Case(
        "shared-embedding-copied",
        CopiedEmbeddingDecoder,
        ToolkitDecoder,
        ("tying",),
        ("", "embed_tokens"),
    ),
    Case(
        "longer-mask-cut-from-below",
        StaleMaskDecoder,
        ToolkitDecoder,
        ("determinism", *LEAK),
        "",
    ),
    Case("pads-only-zeroed", ZeroedPadsEncoder, ToolkitEncoder, PADS, ("", "layers.*.self_attn")),
    Case("left-pads-counted", CountedPositionsEncoder, ToolkitEncoder, ("padding.left",), ""),
    Case("ones-added-to-scores", HalfFilledWordLM, WordLM, LEAK, ""),
    Case(
        "lstm-not-packed",
        lambda: with_lengths(UnpackedTagger),
        lambda: with_lengths(LengthTagger),
        PADS,
        ("", "rnn"),
    ),
    Case(
        "one-pad-visible",
        lambda: with_lengths(OnePadVisibleTagger),
        lambda: with_lengths(LengthTagger),
        PADS,
        "",
    ),
    Case(
        "lengths-changed-in-place",
        lambda: with_lengths(InPlaceLengthTagger),
        lambda: with_lengths(LengthTagger),
        ("purity",),
        "",
    ),
    Case(
        "rows-sorted-and-left-so",
        lambda: with_lengths(UnsortedTagger),
        lambda: with_lengths(LengthTagger),
        (*ROWS, *PADS),
        "",
    ),
]
