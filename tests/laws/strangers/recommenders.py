"""Sequential recommenders: item ids with 0 for padding, masks that models make from the ids."""

import copy

import torch
from tests.laws.strangers.case import Case
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

N_ITEMS = 47

# First author: self-attentive recommendation, a script that everybody has copied.


class PointWiseFeedForward(nn.Module):
    def __init__(self, hidden_units):
        super().__init__()
        self.conv1 = nn.Conv1d(hidden_units, hidden_units, kernel_size=1)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv1d(hidden_units, hidden_units, kernel_size=1)

    def forward(self, inputs):
        outputs = self.conv2(self.relu(self.conv1(inputs.transpose(-1, -2))))
        return outputs.transpose(-1, -2) + inputs


class SASRec(nn.Module):
    def __init__(self, item_num=N_ITEMS, hidden_units=24, maxlen=200, num_blocks=2):
        super().__init__()
        self.item_emb = nn.Embedding(item_num + 1, hidden_units, padding_idx=0)
        self.pos_emb = nn.Embedding(maxlen, hidden_units)
        self.attention_layernorms = nn.ModuleList()
        self.attention_layers = nn.ModuleList()
        self.forward_layers = nn.ModuleList()
        for _ in range(num_blocks):
            self.attention_layernorms.append(nn.LayerNorm(hidden_units, eps=1e-8))
            self.attention_layers.append(nn.MultiheadAttention(hidden_units, 2))
            self.forward_layers.append(PointWiseFeedForward(hidden_units))
        self.last_layernorm = nn.LayerNorm(hidden_units, eps=1e-8)

    def mask(self, tl):
        return ~torch.tril(torch.ones((tl, tl), dtype=torch.bool))

    def forward(self, log_seqs):
        seqs = self.item_emb(log_seqs) * self.item_emb.embedding_dim**0.5
        seqs = seqs + self.pos_emb(torch.arange(log_seqs.shape[1]).expand(log_seqs.shape))
        timeline_mask = log_seqs == 0
        seqs = seqs * ~timeline_mask.unsqueeze(-1)
        attention_mask = self.mask(seqs.shape[1])
        for i in range(len(self.attention_layers)):
            seqs = torch.transpose(seqs, 0, 1)
            Q = self.attention_layernorms[i](seqs)
            mha_outputs, _ = self.attention_layers[i](Q, seqs, seqs, attn_mask=attention_mask)
            seqs = torch.transpose(Q + mha_outputs, 0, 1)
            seqs = self.forward_layers[i](seqs) * ~timeline_mask.unsqueeze(-1)
        log_feats = self.last_layernorm(seqs)
        return log_feats @ self.item_emb.weight.t()


class SASRecOtherSense(SASRec):
    def mask(self, tl):
        return torch.tril(torch.ones((tl, tl), dtype=torch.bool), diagonal=-1)


class SASRecNextItem(SASRec):
    def mask(self, tl):
        return torch.triu(torch.ones((tl, tl), dtype=torch.bool), diagonal=2)


# Second author: masked items in both directions.


class BERTEmbedding(nn.Module):
    def __init__(self, vocab, d):
        super().__init__()
        self.token = nn.Embedding(vocab, d, padding_idx=0)
        self.position = nn.Embedding(200, d)

    def forward(self, x):
        return self.token(x) + self.position.weight[: x.size(1)].unsqueeze(0)


class BERTBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.h, self.d_k = heads, d // heads
        self.linears = nn.ModuleList([copy.deepcopy(nn.Linear(d, d)) for _ in range(4)])
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x, mask):
        b = x.size(0)
        y = self.n1(x)
        q, k, v = (
            linear(y).view(b, -1, self.h, self.d_k).transpose(1, 2) for linear in self.linears[:3]
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) / self.d_k**0.5
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        y = torch.matmul(scores.softmax(-1), v).transpose(1, 2).contiguous()
        x = x + self.linears[3](y.view(b, -1, self.h * self.d_k))
        return x + self.ff(self.n2(x))


class BERT4Rec(nn.Module):
    def __init__(self, vocab=N_ITEMS + 2, d=24, n_layers=2):
        super().__init__()
        self.embedding = BERTEmbedding(vocab, d)
        self.transformer_blocks = nn.ModuleList([BERTBlock(d, 3) for _ in range(n_layers)])
        self.out = nn.Linear(d, vocab)

    def forward(self, x):
        mask = self.make_mask(x)
        x = self.embedding(x)
        for i, transformer in enumerate(self.transformer_blocks):
            x = transformer(x, self.for_layer(mask, i))
        return self.out(x)

    def make_mask(self, x):
        return (x > 0).unsqueeze(1).repeat(1, x.size(1), 1).unsqueeze(1)

    def for_layer(self, mask, i):
        return mask


class BERTHidesQueries(BERT4Rec):
    def make_mask(self, x):
        return (x > 0).unsqueeze(2).repeat(1, 1, x.size(1)).unsqueeze(1)


class BERTMasksOnce(BERT4Rec):
    def for_layer(self, mask, i):
        return mask if i == 0 else None


class BERTPadIsOne(BERT4Rec):
    """Padding became 1 in the new preprocessing, and the table still says 0."""

    def make_mask(self, x):
        return (x != 1).unsqueeze(1).repeat(1, x.size(1), 1).unsqueeze(1)


# Third author: sessions of unequal length, which a GRU reads.


class GRU4Rec(nn.Module):
    def __init__(self, n_items=N_ITEMS, dim=20):
        super().__init__()
        self.emb = nn.Embedding(n_items, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.b = nn.Linear(dim, n_items)

    def forward(self, seq, lengths):
        packed = pack_padded_sequence(self.emb(seq), lengths.cpu(), True, enforce_sorted=False)
        out, _ = self.gru(packed)
        out, _ = pad_packed_sequence(out, batch_first=True, total_length=seq.size(1))
        return self.b(self.pick(out, lengths))

    def pick(self, out, lengths):
        return out[torch.arange(len(out)), lengths - 1]


class LastColumn(GRU4Rec):
    def pick(self, out, lengths):
        return out[:, -1]


class MeanOfAll(GRU4Rec):
    def pick(self, out, lengths):
        return out.mean(1)


class NARM(GRU4Rec):
    """The last state asks all states: a session's main purpose."""

    def __init__(self, n_items=N_ITEMS, dim=20):
        super().__init__(n_items, dim)
        self.a_1, self.a_2 = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.v_t = nn.Linear(dim, 1, bias=False)

    def pick(self, out, lengths):
        last = super().pick(out, lengths)
        alpha = self.v_t(torch.sigmoid(self.a_1(out) + self.a_2(last).unsqueeze(1))).squeeze(-1)
        alpha = self.weigh(alpha, torch.arange(out.size(1))[None] < lengths[:, None])
        return (alpha.unsqueeze(-1) * out).sum(1)

    def weigh(self, alpha, mask):
        return alpha.masked_fill(~mask, float("-inf")).softmax(-1)


class NARMWeighsAll(NARM):
    def weigh(self, alpha, mask):
        return alpha.softmax(-1)


def with_lengths(model):
    def build():
        seq = torch.randint(1, N_ITEMS, (4, 11))
        return model(), {"seq": seq, "lengths": torch.tensor([11, 7, 9, 4])}

    return build


CAUSAL = ("causality.perturb", "causality.gradient", "causality.prefix")
PADDING = ("padding.right", "padding.left", "padding.gradient")
BLOCKS = ("", "transformer_blocks.*")
CASES = [
    Case("mask-in-the-other-sense", SASRecOtherSense, SASRec, CAUSAL, ""),
    Case("next-item-visible", SASRecNextItem, SASRec, CAUSAL, ""),
    Case("queries-are-hidden", BERTHidesQueries, BERT4Rec, PADDING, BLOCKS),
    Case("mask-for-the-first-block", BERTMasksOnce, BERT4Rec, PADDING, BLOCKS),
    Case("pad-is-one-by-now", BERTPadIsOne, BERT4Rec, PADDING, BLOCKS),
    Case(
        "last-column-is-read",
        with_lengths(LastColumn),
        with_lengths(GRU4Rec),
        PADDING,
        "",
    ),
    Case("mean-over-padding", with_lengths(MeanOfAll), with_lengths(GRU4Rec), PADDING, ""),
    Case("weights-of-padding", with_lengths(NARMWeighsAll), with_lengths(NARM), PADDING, ""),
]
