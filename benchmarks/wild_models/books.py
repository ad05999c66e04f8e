"""The chapters of the book LLMs-from-scratch, and other books' and courses' code."""

import torch
from found import code, definitions

import querykey as qk

BOOK = "rasbt/LLMs-from-scratch"
GPT = {
    "vocab_size": 61,
    "context_length": 64,
    "emb_dim": 32,
    "n_heads": 4,
    "n_layers": 2,
    "drop_rate": 0.1,
    "qkv_bias": False,
}


def _attention(name, *more):
    m = code(BOOK, "llms_from_scratch.ch03", under="pkg")
    return getattr(m, name)(*more)


def ch03_self_attention_v1():
    return _attention("SelfAttention_v1", 32, 32)


def ch03_self_attention_v2():
    return _attention("SelfAttention_v2", 32, 32)


def ch03_causal_attention():
    return _attention("CausalAttention", 32, 32, 64, 0.1)


def ch03_heads_wrapper():
    return _attention("MultiHeadAttentionWrapper", 32, 8, 64, 0.1, 4)


def ch03_heads():
    return _attention("MultiHeadAttention", 32, 32, 64, 0.1, 4)


def ch03_heads_of_torch():
    return _attention("PyTorchMultiHeadAttention", 32, 32, 4)


def ch04():
    m = code(BOOK, "gpt", under="ch04/01_main-chapter-code", without="tiktoken")
    return m.GPTModel(GPT)


def ch04_fast():
    m = code(BOOK, "llms_from_scratch.ch04", under="pkg")
    return m.GPTModelFast(GPT)


def _cached(folder, file, **more):
    m = code(BOOK, file, under=f"ch04/{folder}", without="tiktoken")
    return m.GPTModel({**GPT, **more})


def ch04_kv_cache():
    return _cached("03_kv-cache", "gpt_with_kv_cache")


def ch04_kv_cache_optimized():
    return _cached("03_kv-cache", "gpt_with_kv_cache_optimized", kv_window_size=32)


def ch04_gqa():
    return _cached("04_gqa", "gpt_with_kv_gqa", n_kv_groups=2)


def ch04_mla():
    return _cached("05_mla", "gpt_with_kv_mla", latent_dim=16)


def ch04_swa():
    return _cached("06_swa", "gpt_with_kv_swa", sliding_window_size=8, sliding_window_stride=2)


def ch04_moe():
    return _cached("07_moe", "gpt_with_kv_moe", num_experts=4, num_experts_per_tok=2, hidden_dim=48)


def ch04_ffn():
    return _cached("07_moe", "gpt_with_kv_ffn", hidden_dim=48)


def ch05_gpt2_cache():
    return code(BOOK, "llms_from_scratch.kv_cache.gpt2", under="pkg").GPTModel(GPT)


LLAMA = {
    "vocab_size": 61,
    "context_length": 64,
    "emb_dim": 32,
    "n_heads": 4,
    "n_layers": 2,
    "hidden_dim": 48,
    "n_kv_groups": 2,
    "rope_base": 10000.0,
    "dtype": torch.float32,
    "rope_freq": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_context_length": 64,
    },
}


def ch05_llama3():
    m = code(BOOK, "llms_from_scratch.llama3", under="pkg", without="tiktoken")
    return m.Llama3Model(LLAMA)


def ch05_llama3_fast():
    m = code(BOOK, "llms_from_scratch.llama3", under="pkg", without="tiktoken")
    return m.Llama3ModelFast(LLAMA)


def ch05_llama3_cache():
    m = code(BOOK, "llms_from_scratch.kv_cache.llama3", under="pkg", without="tiktoken")
    return m.Llama3Model(LLAMA)


QWEN = {
    "vocab_size": 61,
    "context_length": 64,
    "emb_dim": 32,
    "n_heads": 4,
    "n_layers": 2,
    "hidden_dim": 48,
    "head_dim": 8,
    "qk_norm": True,
    "n_kv_groups": 2,
    "rope_base": 10000.0,
    "dtype": torch.float32,
    "num_experts": 0,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_hidden_dim": 24,
    "moe_intermediate_size": 24,
}


def ch05_qwen3():
    return code(BOOK, "llms_from_scratch.qwen3", under="pkg", without="requests").Qwen3Model(QWEN)


def ch05_qwen3_cache():
    return code(
        BOOK, "llms_from_scratch.kv_cache.qwen3", under="pkg", without="requests"
    ).Qwen3Model(QWEN)


def ch05_qwen3_moe():
    return code(BOOK, "llms_from_scratch.qwen3", under="pkg", without="requests").Qwen3Model(
        {**QWEN, **EXPERTS}
    )


def _pair(model, longer=7, shorter=5, size=61):
    ids = torch.randint(1, size, (2, longer)), torch.randint(1, size, (2, shorter))
    return qk.Subject(model, example=ids)


def attention_is_all_you_need():
    m = code(
        "jadore801120/attention-is-all-you-need-pytorch",
        "transformer.Models",
        without="transformer.Translator",
    )
    model = m.Transformer(
        61, 61, 0, 0, d_word_vec=32, d_model=32, d_inner=64, n_layers=2, n_head=4, d_k=8, d_v=8
    )
    return _pair(model)


def hyunwoongko():
    m = code("hyunwoongko/transformer", "models.model.transformer")
    model = m.Transformer(0, 0, 2, 61, 61, 32, 4, 64, 64, 2, 0.1, "cpu")
    return _pair(model)


def sam_lynn_evans():
    m = code("SamLynnEvans/Transformer", "Models")
    model = m.Transformer(61, 61, 32, 2, 4, 0.1)

    def forward(src, trg):
        later = torch.ones(1, trg.shape[1], trg.shape[1]).tril() * (trg != 1).unsqueeze(1)
        return model(src, trg, (src != 1).unsqueeze(1), later)

    return qk.Subject(forward, example=(torch.randint(2, 61, (2, 7)), torch.randint(2, 61, (2, 5))))


def transformer_encoder():
    m = code("guocheng2018/Transformer-Encoder", "transformer_encoder")
    return m.TransformerEncoder(32, 64, n_heads=4, n_layers=2)


def tutorial_transformer():
    m = definitions(
        "graykode/nlp-tutorial",
        "5-1.Transformer/Transformer.py",
        src_vocab_size=61,
        tgt_vocab_size=61,
        src_len=5,
        tgt_len=5,
        d_model=32,
        d_ff=64,
        d_k=8,
        d_v=8,
        n_layers=2,
        n_heads=4,
    )
    return _pair(m.Transformer(), 5, 5)


def ibm_encoder():
    m = code("IBM/pytorch-seq2seq", "seq2seq.models", without="torchtext")
    model = m.EncoderRNN(61, 64, 32, variable_lengths=True, bidirectional=True, n_layers=2)
    return qk.Subject(
        lambda ids: model(ids, torch.full((len(ids),), ids.shape[1]))[0],
        example=torch.randint(1, 61, (2, 7)),
    )


def ibm_seq2seq():
    m = code("IBM/pytorch-seq2seq", "seq2seq.models", without="torchtext")
    encoder = m.EncoderRNN(61, 64, 32, bidirectional=True)
    decoder = m.DecoderRNN(61, 64, 64, 2, 3, use_attention=True, bidirectional=True)
    model = m.Seq2seq(encoder, decoder)

    def forward(source, target):
        return torch.stack(model(source, None, target, teacher_forcing_ratio=1.0)[0], 1)

    return qk.Subject(forward, example=(torch.randint(1, 61, (2, 7)), torch.randint(1, 61, (2, 5))))


def bert_pytorch():
    return code("bert-pytorch", "bert_pytorch").BERT(61, hidden=32, n_layers=2, attn_heads=4)


def aladdin_transformer():
    m = definitions(
        "aladdinpersson/Machine-Learning-Collection",
        "ML/Pytorch/more_advanced/transformer_from_scratch/transformer_from_scratch.py",
    )
    return _pair(
        m.Transformer(
            61,
            61,
            0,
            0,
            embed_size=32,
            num_layers=2,
            heads=4,
            dropout=0.1,
            device="cpu",
            max_length=64,
        )
    )
