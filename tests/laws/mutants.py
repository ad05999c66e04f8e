"""One-line faults, applied mechanically to the sources of four model styles.

Each names the law that must catch it and the module that must be blamed.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch

STYLES = Path(__file__).parent / "styles"


@dataclass(frozen=True)
class Fault:
    """Replace `old` by `new` in a style's source: `law` must see it, and blame `module`."""

    name: str
    style: str
    old: str
    new: str
    law: str
    module: str

    @property
    def id(self) -> str:
        return f"{self.style}-{self.name.replace(' ', '-')}"


def build(style: str, folder: Path, old: str = "", new: str = "", name: str = "as_it_is"):
    """A style's model, with one text replaced by another."""
    source = (STYLES / f"{style}.py").read_text()
    if old:
        assert old in source, f"{style}.py has no `{old}`"
        source = source.replace(old, new)
    file = folder / f"{style}_{name.replace(' ', '_').replace('/', '_')}.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)  # the same weights in every run of the tests
    return module.make()


GPT = "nanogpt"
SEQ = "transformer"
HF = "library"
RNN = "recurrent"
NANO = "blocks.0.attention"
HIDE = 'scores = scores.masked_fill(~seen, float("-inf"))'
SOFT = "weights = F.softmax(scores, dim=-1)"

FAULTS = [
    # causality
    Fault("mask dropped", GPT, HIDE, "pass", "causality.perturb", NANO),
    Fault("mask transposed", GPT, "seen = self.triangle[:T, :T]", "seen = self.triangle[:T, :T].mT",
          "causality.perturb", NANO),
    Fault("mask off by one", GPT, ".tril().bool()", ".tril(1).bool()", "causality.perturb", NANO),
    Fault("mask inverted", GPT, "masked_fill(~seen", "masked_fill(seen", "masked-row", NANO),
    Fault("mask after softmax", GPT, f"{HIDE}\n        {SOFT}", f"{SOFT}.masked_fill(~seen, 0.0)",
          "causality.perturb", NANO),
    Fault("mask lost when dropout is on", GPT, HIDE,
          f"{HIDE} if not (self.training and self.drop.p) else scores", "causality.perturb", NANO),
    Fault("mask lost on long sequences", GPT, HIDE, f"{HIDE} if T < 12 else scores",
          "causality.prefix", NANO),
    Fault("mask lost on short sequences", GPT, HIDE, f"{HIDE} if T > 6 else scores",
          "causality.prefix", NANO),
    Fault("mask lost for one row", GPT, HIDE, f"{HIDE} if B > 1 else scores",
          "causality.perturb", NANO),
    Fault("mask too weak", GPT, 'float("-inf")', "-2.0", "causality.perturb", NANO),
    Fault("mask for one head only", GPT, HIDE,
          'scores[:, :1] = scores[:, :1].masked_fill(~seen, float("-inf"))',
          "causality.perturb", NANO),
    Fault("softmax over queries", GPT, "F.softmax(scores, dim=-1)", "F.softmax(scores, dim=-2)",
          "causality.perturb", NANO),
    Fault("heads mixed", GPT, "v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)",
          "v = v.reshape(B, self.heads, T, C // self.heads)", "causality.perturb", NANO),
    Fault("heads joined wrongly", GPT, "(weights @ v).transpose(1, 2).reshape(B, T, C)",
          "(weights @ v).reshape(B, T, C)", "causality.perturb", NANO),
    Fault("norm over tokens", GPT, "x = self.norm(x)\n", "x = self.norm(x) - x.mean(1, keepdim=True)\n",  # noqa: E501
          "causality.perturb", "(model)"),
    Fault("future mean added", GPT, "return self.down(F.gelu(self.up(x)))",
          "return self.down(F.gelu(self.up(x))) + 0.01 * x.amax(1, keepdim=True)",
          "causality.perturb", "blocks.0.mlp"),
    Fault("tokens rolled", GPT, "x = x + self.mlp(self.norm2(x))",
          "x = x + self.mlp(self.norm2(x)).roll(-1, 1)", "causality.perturb", "blocks.0"),
    Fault("straight through", GPT, "return self.out(mixed)",
          "ahead = x.mean(1, keepdim=True); return self.out(mixed) + ahead - ahead.detach()",
          "causality.gradient", "blocks.1.attention"),
    Fault("decoder mask dropped", SEQ, "x = self.norm1(x + self.attention(x, x, hidden, future))",
          "x = self.norm1(x + self.attention(x, x, hidden))", "causality.perturb", "decoder.0.attention"),  # noqa: E501
    Fault("decoder mask off by one", SEQ, "triu(1)", "triu(2)", "causality.perturb", "(model)"),
    Fault("window looks ahead", HF, "(key <= query) & (key > query", "(key <= query + 1) & (key > query",  # noqa: E501
          "causality.perturb", "(model)"),
    Fault("mask lost without a mask", HF, "seen = seen[None, None]\n        if",
          "seen = (seen | (attention_mask is None))[None, None]\n        if",
          "causality.perturb", "(model)"),
    Fault("mask replaced by the given one", HF, "seen = seen & attention_mask",
          "seen = attention_mask", "causality.perturb", "(model)"),
    Fault("mask lost when the cache is off", HF, "seen = self.mask(attention_mask, past, T)",
          "seen = self.mask(attention_mask, past, T) | (use_cache is False)",
          "causality.perturb", "(model)"),
    Fault("mask lost with dropout", HF, "scores = scores.masked_fill(~seen,",
          "scores = scores if self.attention_dropout > 0 else scores.masked_fill(~seen,",
          "causality.perturb", "layers.0.self_attn"),
    Fault("convolution looks ahead", RNN, "joined = torch.cat([before, x], 1)",
          "joined = torch.cat([before[:, 1:], x, x[:, :1] * 0], 1)", "causality.perturb",
          "layers.0.conv"),
    # padding
    Fault("encoder padding seen", SEQ, "x = self.norm1(x + self.attention(x, x, hidden))",
          "x = self.norm1(x + self.attention(x, x))", "padding.right", "encoder.0.attention"),
    Fault("memory padding seen", SEQ, "self.cross(x, memory, memory_hidden)",
          "self.cross(x, memory)", "padding.right", "decoder.0.cross"),
    Fault("padding mask inverted", SEQ, "scores.masked_fill(hidden[", "scores.masked_fill(~hidden[",
          "padding.right", "encoder.0.attention"),
    Fault("padding masks queries", HF, "attention_mask[:, None, None, :].bool()",
          "attention_mask[:, None, -T:, None].bool()", "padding.left", "(model)"),
    Fault("padding masked too weakly", SEQ, "hidden[:, None, None, :], -1e9",
          "hidden[:, None, None, :], -1.0", "padding.right", "encoder.0.attention"),
    Fault("padding in a mean", SEQ, "return self.down(self.up(x).relu())",
          "return self.down(self.up(x).relu() - x.mean((1, 2), keepdim=True))",
          "padding.right", "encoder.0.mlp"),
    Fault("padding ignored", HF, "seen = seen & attention_mask[:, None, None, :].bool()", "pass",
          "padding.left", "(model)"),
    Fault("padding reaches the convolution", RNN, "h = self.norm(x) * real[..., None]",
          "h = self.norm(x)", "padding.left", "layers.0.conv"),
    Fault("padding reaches the state", RNN, "state = torch.where(real[:, t, None], fresh, state)",
          "state = fresh", "padding.left", "layers.0.core"),
    # batch
    Fault("batch mean", GPT, "x = x + self.mlp(self.norm2(x))",
          "x = x + self.mlp(self.norm2(x)) - 0.1 * x.mean(0)", "batch.others", "blocks.0"),
    Fault("batch broadcast", HF, "scores = q @ k.mT * self.size**-0.5",
          "scores = q @ k[:1].mT * self.size**-0.5", "batch.others", "layers.0.self_attn"),
    Fault("another row's values", HF, "return self.o_proj((weights @ v)",
          "return self.o_proj((weights @ v.roll(1, 0))", "batch.others", "layers.0.self_attn"),
    Fault("softmax over the batch", SEQ, "scores.softmax(-1)", "scores.softmax(0)", "batch.others",
          "encoder.0.attention"),
    Fault("scaled by the batch", RNN, "return x + self.out(h", "return x + len(x) * self.out(h",
          "batch.alone", "layers.0"),
    # cache
    Fault("positions restart at the cache", HF, "torch.arange(past, past + T).expand",
          "torch.arange(T).expand", "cache.step", "(model)"),
    Fault("positions one off at the cache", HF, "torch.arange(past, past + T).expand",
          "torch.arange(max(past - 1, 0), max(past - 1, 0) + T).expand", "cache.step", "(model)"),
    Fault("window off by one at the cache", HF, "(key > query - self.sliding_window)",
          "(key > query - self.sliding_window - int(past > 0))", "cache.step", "(model)"),
    Fault("chunks see their own future", HF, "seen = (key <= query) & (key",
          "seen = ((key <= query) | (past > 0)) & (key", "cache.chunk", "(model)"),
    Fault("cached keys after the new", HF, "torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)",
          "torch.cat([k, past[0]], 2), torch.cat([v, past[1]], 2)", "cache.step",
          "layers.0.self_attn"),
    Fault("cached keys without values", HF, "torch.cat([past[1], v], 2)",
          "torch.cat([past[1] * 0, v], 2)", "cache.step", "layers.0.self_attn"),
    Fault("the cache of another row", HF, "torch.cat([past[0], k], 2)",
          "torch.cat([past[0].roll(1, 0), k], 2)", "cache.step", "layers.0.self_attn"),
    Fault("chunks restart the state", RNN, "if state is None:",
          "if state is None or ids.size(1) > 1:", "cache.chunk", "(model)"),
    Fault("the state of another row", RNN, "before = state[index]",
          "before = tuple(s.roll(1, 0) for s in state[index])", "cache.step", "(model)"),
    Fault("the state of another layer", RNN, "before = state[index]", "before = state[0]",
          "cache.step", "(model)"),
    Fault("a short window is kept", RNN, "joined[:, -(self.reach - 1) :]",
          "joined[:, -(self.reach - 1) :] * 0", "cache.step", "layers.0.conv"),
    Fault("generation forgets the latest token", GPT, "idx[:, -self.places.num_embeddings :]",
          "idx[:, :-1] if idx.size(1) > 8 else idx", "cache.generate", "(model)"),
    Fault("generation takes the least", GPT, "logits[:, -1] / temperature",
          "-logits[:, -1] / temperature", "cache.generate", "(model)"),
    Fault("generation changes its cache", HF, "out.logits[:, -1:].argmax(-1), out.past_key_values",
          "out.logits[:, -1:].argmax(-1), [(k * 1.1, v) for k, v in out.past_key_values]",
          "cache.generate", "(model)"),
    Fault("generation does not place", HF, "places = (mask.cumsum(1) - 1).clamp(min=0)[:, -fresh.size(1) :]",  # noqa: E501
          "places = (mask.cumsum(1) - 1).clamp(min=0)[:, : fresh.size(1)]", "cache.generate", "(model)"),  # noqa: E501
    Fault("generation hides its own tokens", HF, "mask = torch.cat([mask, torch.ones_like(fresh)], 1)",  # noqa: E501
          "mask = torch.cat([mask, torch.zeros_like(fresh)], 1)", "cache.generate", "(model)"),
    Fault("generation with a broken cache", HF, "torch.cat([past[1], v], 2)",
          "torch.cat([past[1] * 0, v], 2)", "cache.generate", "layers.0.self_attn"),
    # the rest
    Fault("input changed in place", GPT, "x = self.tokens(idx) +",
          "x = self.tokens(idx.clamp_(max=30)) +", "purity", "(model)"),
    Fault("mask changed in place", RNN, "is None else attention_mask\n",
          "is None else attention_mask.fill_(1)\n", "purity", "(model)"),
    Fault("dropout left on", HF, "self.attention_dropout, self.training", "0.5, True",
          "determinism", "layers.0.self_attn"),
    Fault("noise in evaluation", RNN, "torch.sigmoid(self.decay(x)), self.write(x)",
          "torch.sigmoid(self.decay(x)), self.write(x + 0.1 * torch.randn_like(x))", "determinism",
          "layers.0.core"),
    Fault("a dead branch", GPT, "x = x + self.mlp(self.norm2(x))",
          "x = x + 0.0 * self.mlp(self.norm2(x))", "gradient.reaches", "blocks.0.mlp"),
    Fault("a detached branch", HF, "x = x + mixed", "x = x + mixed.detach()", "gradient.reaches",
          "layers.0.self_attn"),
    Fault("a dropped branch", SEQ, "return self.norm2(x + self.mlp(x))",
          "self.mlp(x); return self.norm2(x)", "gradient.reaches", "encoder.0.mlp"),
    Fault("untied weights", GPT, "self.head.weight = self.tokens.weight", "pass", "tying", "head"),
    Fault("a float32 island", HF, "dtype=torch.float32).to(x.dtype)", "dtype=torch.float32)",
          "dtype.agree", "layers.0.self_attn"),
    Fault("a half island", SEQ, "weights = scores.softmax(-1)",
          "weights = scores.half().softmax(-1).to(scores.dtype)", "dtype.agree", ""),
    Fault("hidden rows are NaN", SEQ, "hidden[:, None, None, :], -1e9)",
          'hidden[:, None, None, :], float("-inf"))', "masked-row", "encoder.0.attention"),
    Fault("scale missing", SEQ, " * q.size(-1) ** -0.5", " * 3.0", "saturation", ""),
]  # fmt: skip

# A change that looks like a fault and is none, per law.
HARMLESS = [
    ("purity", RNN, "x = self.embed(ids)", "x = self.embed(ids.clone().clamp_(min=0))"),
    ("determinism", RNN, "x = self.embed(ids)", "torch.rand(3); x = self.embed(ids)"),
    ("causality.perturb", GPT, HIDE, "scores = scores + torch.where(seen, 0.0, -1e30).to(scores.dtype)"),  # noqa: E501
    ("causality.perturb", GPT, "x = x + self.mlp(self.norm2(x))",
     "x = x + self.mlp(self.norm2(x)) + 0.1 * x.roll(1, 1) * (torch.arange(x.size(1)) > 0)[:, None]"),  # noqa: E501
    ("causality.gradient", GPT, "return self.out(mixed)",
     "return self.out(mixed) + 0 * x.detach().mean(1, keepdim=True)"),
    ("causality.prefix", GPT, HIDE, f"{HIDE} if T > 6 else scores + torch.where(seen, 0.0, -1e30).to(scores.dtype)"),  # noqa: E501
    ("padding.right", SEQ, "hidden[:, None, None, :], -1e9", "hidden[:, None, None, :], -1e30"),
    ("padding.left", HF, "seen = seen & attention_mask[:, None, None, :].bool()",
     "seen = seen & (attention_mask > 0)[:, None, None, :]"),
    ("padding.gradient", SEQ, "-1e9)\n        weights", "-1e12)\n        weights"),
    ("batch.alone", RNN, "return x + self.out(h", "return x + (len(x) / len(h)) * self.out(h"),
    ("batch.others", HF, "scores = q @ k.mT", "scores = q.flip(0).flip(0) @ k.mT"),
    ("cache.step", HF, "torch.cat([past[0], k], 2)", "torch.cat([past[0].clone(), k], 2)"),
    ("cache.chunk", RNN, "before = state[index]", "before = tuple(s * 1 for s in state[index])"),
    ("cache.generate", GPT, "logits[:, -1] / temperature", "logits[:, -1] / temperature / 3"),
    ("cache.generate", HF, "places = (mask.cumsum(1) - 1).clamp(min=0)[:, -fresh.size(1) :]",
     "places = torch.arange(mask.size(1))[-fresh.size(1) :].expand_as(fresh)"),
    ("masked-row", SEQ, "weights = scores.softmax(-1)",
     "weights = scores.softmax(-1).nan_to_num(0.0)"),
    ("gradient.reaches", GPT, "return self.down(F.gelu(self.up(x)))",
     "return 1e-9 * self.down(F.gelu(self.up(x)))"),
    ("tying", GPT, "self.head.weight = self.tokens.weight",
     "self.tokens.weight = self.head.weight"),
    ("dtype.agree", HF, "return self.weight * x * torch.rsqrt(",
     "return self.weight * x * (torch.tensor(1.0, dtype=x.dtype)) * torch.rsqrt("),
    ("accumulation", RNN, "return self.head(x), after", "return self.head(x) / 2, after"),
    ("saturation", SEQ, " * q.size(-1) ** -0.5", " / q.size(-1) ** 0.5"),
]  # fmt: skip
