"""Packages of one idea each about attention: windows, kernels, hashing, memories, recurrences."""

import torch
from found import code

import querykey as qk

SIZES = {"num_tokens": 61, "dim": 32, "depth": 2}


def _of_16(model):
    """A model that takes lengths of a certain multiple, shown by the example."""
    return qk.Subject(model, example=torch.randint(0, 61, (2, 16)))


def performer():
    m = code("performer-pytorch", "performer_pytorch")
    return m.PerformerLM(**SIZES, max_seq_len=64, heads=4, dim_head=8)


def performer_causal():
    m = code("performer-pytorch", "performer_pytorch")
    return m.PerformerLM(**SIZES, max_seq_len=64, heads=4, dim_head=8, causal=True)


def linear_attention():
    m = code("linear-attention-transformer", "linear_attention_transformer")
    return m.LinearAttentionTransformerLM(**SIZES, max_seq_len=64, heads=4, dim_head=8)


def linear_attention_causal():
    m = code("linear-attention-transformer", "linear_attention_transformer")
    return m.LinearAttentionTransformerLM(**SIZES, max_seq_len=64, heads=4, dim_head=8, causal=True)


def routing():
    m = code("routing-transformer", "routing_transformer")
    model = m.RoutingTransformerLM(
        **SIZES, max_seq_len=64, heads=4, dim_head=8, window_size=8, causal=True
    )
    return _of_16(model)


def reformer():
    m = code("reformer-pytorch", "reformer_pytorch")
    return _of_16(
        m.ReformerLM(**SIZES, max_seq_len=64, heads=4, dim_head=8, bucket_size=4, causal=True)
    )


def sinkhorn():
    m = code("sinkhorn-transformer", "sinkhorn_transformer")
    return _of_16(
        m.SinkhornTransformerLM(**SIZES, max_seq_len=64, heads=4, bucket_size=8, causal=True)
    )


def linformer():
    m = code("linformer", "linformer")
    return m.LinformerLM(**SIZES, seq_len=16, k=8, heads=4)


def local_attention():
    m = code("local-attention", "local_attention")
    return m.LocalTransformer(
        **SIZES, max_seq_len=64, local_attn_window_size=8, heads=4, dim_head=8
    )


def memory_efficient():
    m = code("memory-efficient-attention-pytorch", "memory_efficient_attention_pytorch.transformer")
    return m.Transformer(**SIZES, max_seq_len=64, heads=4, dim_head=8, causal=True)


def palm():
    return code("PaLM-pytorch", "palm_pytorch").PaLM(**SIZES, heads=4, dim_head=8)


def gmlp():
    return _of_16(code("g-mlp-pytorch", "g_mlp_pytorch").gMLP(**SIZES, seq_len=16))


def gmlp_causal():
    return code("g-mlp-pytorch", "g_mlp_pytorch").gMLP(**SIZES, seq_len=16, causal=True)


def nystromformer():
    m = code("nystrom-attention", "nystrom_attention")
    return m.Nystromformer(dim=32, depth=2, dim_head=8, heads=4, num_landmarks=4)


def compressive():
    m = code("compressive-transformer-pytorch", "compressive_transformer_pytorch")
    return m.CompressiveTransformer(61, 32, 16, 2, heads=4, mem_len=16, cmem_len=4)


def memory_transformer_xl():
    m = code("memory-transformer-xl", "memory_transformer_xl")
    return _of_16(m.MemoryTransformerXL(61, 32, 16, 2, heads=4, mem_len=16, lmem_len=16))


def memformer():
    m = code("memformer", "memformer")
    return m.Memformer(
        dim=32,
        enc_num_tokens=61,
        enc_depth=2,
        enc_heads=4,
        enc_max_seq_len=64,
        dec_num_tokens=61,
        dec_depth=2,
        dec_heads=4,
        dec_max_seq_len=64,
        num_memory_slots=5,
    )


def recurrent_memory():
    m = code("recurrent-memory-transformer-pytorch", "recurrent_memory_transformer_pytorch")
    return m.RecurrentMemoryTransformer(
        **SIZES, num_memory_tokens=3, seq_len=16, heads=4, dim_head=8
    )


def block_recurrent():
    m = code("block-recurrent-transformer-pytorch", "block_recurrent_transformer_pytorch")
    return m.BlockRecurrentTransformer(
        **SIZES, heads=4, dim_head=16, max_seq_len=64, block_width=16, num_state_vectors=16
    )


def fast_transformer():
    m = code("fast-transformer-pytorch", "fast_transformer_pytorch")
    model = m.FastTransformer(**SIZES, max_seq_len=64, heads=4, dim_head=8, absolute_pos_emb=True)
    return qk.Subject(
        model,
        example={"x": torch.randint(0, 61, (2, 7)), "mask": torch.ones(2, 7, dtype=torch.bool)},
    )


def h_transformer_causal():
    m = code("h-transformer-1d", "h_transformer_1d")
    return m.HTransformer1D(**SIZES, max_seq_len=64, heads=4, dim_head=8, block_size=4, causal=True)


def token_shift():
    m = code("token-shift-gpt", "token_shift_gpt")
    return qk.Subject(
        m.TokenShiftGPT(**SIZES, max_seq_len=64), example=torch.randint(0, 61, (2, 40))
    )


def charformer():
    m = code("charformer-pytorch", "charformer_pytorch")
    return m.GBST(num_tokens=61, dim=32, max_block_size=4, downsample_factor=1)


def feedback():
    m = code("feedback-transformer-pytorch", "feedback_transformer_pytorch")
    return m.FeedbackTransformer(**SIZES, seq_len=2, mem_len=64, heads=4, dim_head=8)


def hierarchical():
    m = code("simple-hierarchical-transformer", "simple_hierarchical_transformer")
    return m.HierarchicalTransformer(
        **SIZES, seq_len=64, heads=4, dim_head=16, hierarchies=(1, 2), window_sizes=(16, None)
    )


def mega():
    return code("mega-pytorch", "mega_pytorch").Mega(
        **SIZES, causal=True, ema_heads=4, attn_dim_qk=8, attn_dim_value=16
    )


def megabyte():
    m = code("MEGABYTE-pytorch", "MEGABYTE_pytorch")
    return m.MEGABYTE(
        num_tokens=61, dim=(32, 16), depth=(1, 1), max_seq_len=(16, 4), heads=4, dim_head=8
    )


def gateloop():
    m = code("gateloop-transformer", "gateloop_transformer")
    return m.Transformer(**SIZES, heads=4, dim_head=8)


def infini():
    m = code("infini-transformer-pytorch", "infini_transformer_pytorch")
    return m.InfiniTransformer(**SIZES, heads=4, dim_head=8)


def native_sparse():
    m = code("native-sparse-attention-pytorch", "native_sparse_attention_pytorch.transformer")
    return m.Transformer(
        61,
        32,
        2,
        dim_head=8,
        heads=4,
        kv_heads=2,
        use_sparse_attn=True,
        sparse_attn_kwargs={
            "sliding_window_size": 8,
            "compress_block_size": 4,
            "compress_block_sliding_stride": 4,
            "selection_block_size": 4,
            "num_selected_blocks": 2,
        },
    )


def taylor_channels():
    m = code("taylor-series-linear-attention", "taylor_series_linear_attention")
    return m.ChannelFirstTaylorSeriesLinearAttn(dim=32, dim_head=8, heads=4)


def taylor():
    m = code("taylor-series-linear-attention", "taylor_series_linear_attention")
    return m.TaylorSeriesLinearAttn(dim=32, dim_head=8, heads=4)


def agent_attention():
    m = code("agent-attention-pytorch", "agent_attention_pytorch.agent_transformer")
    return m.AgentTransformer(32, num_agent_tokens=5, depth=2, heads=4, dim_head=8)


def titans():
    m = code("titans-pytorch", "titans_pytorch")
    return m.MemoryAsContextTransformer(
        **SIZES,
        segment_len=8,
        num_persist_mem_tokens=2,
        num_longterm_mem_tokens=2,
        heads=4,
        dim_head=8,
        neural_memory_layers=(2,),
    )


def retro():
    m = code("RETRO-pytorch", "retro_pytorch.retro_pytorch", without="autofaiss faiss")
    return m.RETRO(
        num_tokens=61,
        max_seq_len=64,
        enc_dim=32,
        enc_depth=1,
        dec_dim=32,
        dec_depth=2,
        dec_cross_attn_layers=(2,),
        heads=2,
        dim_head=32,
        chunk_size=8,
    )


def omninet():
    m = code("omninet-pytorch", "omninet_pytorch")
    return m.Omninet(dim=32, depth=2, dim_head=8, heads=4, pool_layer_tokens_every=2)


def omninet_causal():
    m = code("omninet-pytorch", "omninet_pytorch")
    return m.OmninetCausal(dim=32, depth=2, dim_head=8, heads=4, pool_layer_tokens_every=2)


def complex_valued():
    m = code("complex-valued-transformer", "complex_valued_transformer")
    model = m.ComplexTransformer(
        32, depth=2, num_tokens=61, causal=True, heads=4, dim_head=8, flash_attn=False
    )
    return qk.Subject(
        lambda ids: model(ids, return_real_logits=True), example=torch.randint(0, 61, (2, 7))
    )


def tranception():
    m = code("tranception-pytorch", "tranception_pytorch")
    return m.Tranception(dim=32, depth=2, heads=4, dim_head=8)


def soft_moe():
    return code("soft-moe-pytorch", "soft_moe_pytorch").SoftMoE(dim=32, seq_len=16, num_experts=4)


def st_moe():
    m = code("st-moe-pytorch", "st_moe_pytorch")
    return m.MoE(dim=32, num_experts=4)


def peer():
    return code("PEER-pytorch", "PEER_pytorch").PEER(
        32, heads=2, num_experts=64, num_experts_per_head=4
    )


def colt5():
    m = code("CoLT5-attention", "colt5_attention")
    return m.ConditionalRoutedTransformerBlock(
        32,
        num_heavy_attn_tokens_q=8,
        num_heavy_attn_tokens_kv=8,
        num_heavy_ff_tokens=8,
        light_dim_head=8,
        light_heads=4,
        heavy_dim_head=8,
        heavy_heads=4,
        light_window_size=8,
    )


def bidirectional_cross():
    m = code("bidirectional-cross-attention", "bidirectional_cross_attention")
    model = m.BidirectionalCrossAttention(dim=32, heads=4, dim_head=8, context_dim=24)
    return qk.Subject(model, example={"x": torch.randn(2, 7, 32), "context": torch.randn(2, 5, 24)})


def isab():
    return code("isab-pytorch", "isab_pytorch").ISAB(dim=32, heads=4, num_latents=5)


def perceiver_lm():
    m = code("perceiver-pytorch", "perceiver_pytorch.perceiver_io")
    return m.PerceiverLM(
        num_tokens=61,
        dim=32,
        max_seq_len=64,
        depth=2,
        num_latents=7,
        latent_dim=24,
        cross_heads=1,
        latent_heads=4,
        cross_dim_head=8,
        latent_dim_head=8,
    )


def ring_attention():
    m = code("ring-attention-pytorch", "ring_attention_pytorch.ring_attention", beside="jaxtyping")
    return m.RingTransformer(
        num_tokens=61,
        dim=32,
        depth=2,
        causal=True,
        heads=4,
        dim_head=8,
        bucket_size=4,
        ring_attn=False,
    )


def dalle():
    m = code(
        "dalle-pytorch",
        "dalle_pytorch.dalle_pytorch",
        without="taming omegaconf youtokentome requests",
    )
    vae = m.DiscreteVAE(image_size=16, num_layers=2, num_tokens=61, codebook_dim=32, hidden_dim=8)
    return m.DALLE(
        dim=32, vae=vae, num_text_tokens=61, text_seq_len=16, depth=2, heads=4, dim_head=8
    )
