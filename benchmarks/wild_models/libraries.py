"""Libraries of language models: litgpt, torchtune, x-transformers."""

import torch
from found import code

import querykey as qk

SIZES = {
    "n_layer": 2,
    "n_head": 4,
    "n_embd": 32,
    "block_size": 64,
    "vocab_size": 61,
    "padded_vocab_size": 64,
    "intermediate_size": 48,
}


def _litgpt(name, **more):
    m = code("litgpt", "litgpt.model", without="lightning lightning_utilities psutil")
    config = m.Config.from_name(name, **{**SIZES, **more})
    return m.GPT(config)


def litgpt_pythia():
    return _litgpt("pythia-14m")


def litgpt_llama3():
    return _litgpt("Llama-3.2-1B", n_query_groups=2, head_size=8)


def litgpt_gemma2():
    return _litgpt("Gemma-2-2b", n_query_groups=2, head_size=8, sliding_window_size=8)


def litgpt_mixtral():
    return _litgpt("Mixtral-8x7B-v0.1", n_query_groups=2, head_size=8, n_expert=4)


def litgpt_falcon():
    return _litgpt("falcon-7b", n_query_groups=1, head_size=8)


def litgpt_cached():
    model = _litgpt("pythia-14m")
    model.set_kv_cache(batch_size=2, device=torch.device("cpu"))
    return model


def _torchtune(family, name, **more):
    m = code("torchtune", f"torchtune.models.{family}", without="datasets torchao torchdata")
    sizes = {
        "vocab_size": 61,
        "num_layers": 2,
        "num_heads": 4,
        "embed_dim": 32,
        "max_seq_len": 64,
        "intermediate_dim": 48,
    }
    return getattr(m, name)(**{**sizes, **more})


def torchtune_llama3():
    return _torchtune("llama3", "llama3", num_kv_heads=2)


def torchtune_gemma():
    return _torchtune("gemma", "gemma", num_kv_heads=1, head_dim=8)


def torchtune_qwen2():
    return _torchtune("qwen2", "qwen2", num_kv_heads=2)


def torchtune_cached():
    model = _torchtune("llama3", "llama3", num_kv_heads=2)
    model.setup_caches(batch_size=2, dtype=torch.float32)
    return model


def _x(kind="Decoder", wrapper=None, **more):
    m = code("x-transformers", "x_transformers")
    layers = getattr(m, kind)(**{**{"dim": 32, "depth": 2, "heads": 4, "attn_dim_head": 8}, **more})
    return m.TransformerWrapper(num_tokens=61, max_seq_len=64, attn_layers=layers, **wrapper or {})


def x_decoder():
    return _x()


def x_encoder():
    return _x("Encoder")


def x_flash():
    return _x(attn_flash=True)


def x_rotary():
    return _x(rotary_pos_emb=True, wrapper={"use_abs_pos_emb": False})


def x_xpos():
    return _x(rotary_xpos=True, wrapper={"use_abs_pos_emb": False})


def x_alibi():
    return _x(alibi_pos_bias=True)


def x_buckets():
    return _x(rel_pos_bias=True)


def x_dynamic():
    return _x(dynamic_pos_bias=True)


def x_grouped():
    return _x(attn_kv_heads=2)


def x_one_head():
    return _x(attn_one_kv_head=True)


def x_memory_keys():
    return _x(attn_num_mem_kv=3)


def x_memory_tokens():
    return _x(wrapper={"num_memory_tokens": 3})


def x_top_keys():
    return _x(attn_sparse_topk=4)


def x_qk_norm():
    return _x(attn_qk_norm=True)


def x_macaron():
    return _x(macaron=True, ff_glu=True, ff_swish=True)


def x_shift():
    return _x(shift_tokens=1)


def x_gated():
    return _x(gate_residual=True, attn_gate_values=True)


def x_latent():
    return _x(
        attn_use_latent_q=True,
        attn_dim_latent_q=16,
        attn_use_latent_kv=True,
        attn_dim_latent_kv=16,
        rotary_pos_emb=False,
    )


def x_forgetting():
    return _x(attn_data_dependent_alibi=True)


def x_hyper():
    return _x(num_residual_streams=2)


def x_value_residual():
    return _x(add_value_residual=True)


def x_recurrence():
    return _x(rel_pos_bias=True, wrapper={"max_mem_len": 16, "shift_mem_down": 1})


def x_scale_norm():
    return _x("Encoder", use_scalenorm=True, sandwich_norm=True)


def x_prefix():
    m = code("x-transformers", "x_transformers")
    return m.PrefixDecoder(dim=32, depth=2, heads=4, attn_dim_head=8)


def x_continuous():
    m = code("x-transformers", "x_transformers")
    layers = m.Decoder(dim=32, depth=2, heads=4, attn_dim_head=8)
    return m.ContinuousTransformerWrapper(dim_in=5, dim_out=5, max_seq_len=64, attn_layers=layers)


def x_pair():
    m = code("x-transformers", "x_transformers")
    both = m.XTransformer(
        dim=32,
        enc_num_tokens=61,
        enc_depth=2,
        enc_heads=4,
        enc_max_seq_len=64,
        dec_num_tokens=61,
        dec_depth=2,
        dec_heads=4,
        dec_max_seq_len=64,
    )

    def forward(src, tgt):
        memory = both.encoder(src, return_embeddings=True)
        return both.decoder.net(tgt, context=memory)

    return qk.Subject(forward, example=(torch.randint(0, 61, (2, 7)), torch.randint(0, 61, (2, 5))))
