"""State spaces, gated recurrences, retention, long convolutions, and their language models."""

import torch
from found import code

import querykey as qk


def mamba():
    m = code("mambapy", "mambapy.mamba")
    return m.Mamba(m.MambaConfig(d_model=32, n_layers=2))


def jamba():
    m = code("mambapy", "mambapy.jamba")
    config = m.JambaLMConfig(
        d_model=32,
        n_layers=4,
        mlp_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_layer_offset=1,
        attn_layer_period=2,
        vocab_size=61,
        num_experts=4,
        num_experts_per_tok=2,
        expert_layer_offset=1,
        expert_layer_period=2,
    )
    return m.JambaLM(config)


def xlstm():
    m = code("xlstm", "xlstm", beside="mlstm_kernels dacite omegaconf")
    config = m.xLSTMLMModelConfig(
        vocab_size=61,
        embedding_dim=32,
        num_blocks=2,
        context_length=64,
        mlstm_block=m.mLSTMBlockConfig(mlstm=m.mLSTMLayerConfig(num_heads=4)),
    )
    return m.xLSTMLMModel(config)


def min_lm():
    m = code("minGRU-pytorch", "minGRU_pytorch.minLM")
    return m.minLM(num_tokens=61, dim=32, depth=2)


def min_lm_conv():
    m = code("minGRU-pytorch", "minGRU_pytorch.minLM")
    return m.minLM(num_tokens=61, dim=32, depth=2, enable_conv=True)


def min_lm_lstm():
    m = code("minGRU-pytorch", "minGRU_pytorch.minLM")
    return m.minLM(num_tokens=61, dim=32, depth=2, use_lstm=True)


def min_gru():
    return code("minGRU-pytorch", "minGRU_pytorch").minGRU(32)


def cfc():
    m = code("ncps", "ncps.torch")
    return qk.Subject(m.CfC(8, 16), example=torch.randn(2, 7, 8))


def ltc():
    m = code("ncps", "ncps.torch")
    return m.LTC(8, 16)


def s5():
    return code("s5-pytorch", "s5").S5Block(32, 32, bidir=False)


def s5_both_ways():
    return code("s5-pytorch", "s5").S5Block(32, 32, bidir=True)


def s4d():
    m = code("state-spaces/s4", "models.s4.s4d")
    return m.S4D(32, d_state=16, transposed=False)


def hyena():
    m = code("HazyResearch/safari", "standalone_hyena")
    return m.HyenaOperator(d_model=32, l_max=64, order=2, filter_order=16)


def another_retnet():
    m = code("yet-another-retnet", "yet_another_retnet.retnet")
    model = m.RetNet(61, d_model=32, nhead=4, num_layers=2, dim_feedforward=64)
    return qk.Subject(model.forward_parallel, example=torch.randint(0, 61, (2, 7)))


def torchscale_retnet():
    m = code(
        "torchscale", "torchscale.architecture.retnet", without="fairscale apex torchvision timm"
    )
    config = code("torchscale", "torchscale.architecture.config")
    sizes = config.RetNetConfig(
        vocab_size=61,
        decoder_embed_dim=32,
        decoder_value_embed_dim=32,
        decoder_retention_heads=4,
        decoder_ffn_embed_dim=48,
        decoder_layers=2,
        no_output_layer=False,
    )
    return m.RetNetDecoder(sizes, embed_tokens=torch.nn.Embedding(61, 32))


def torchscale_decoder():
    m = code(
        "torchscale", "torchscale.architecture.decoder", without="fairscale apex torchvision timm"
    )
    config = code("torchscale", "torchscale.architecture.config")
    sizes = config.DecoderConfig(
        vocab_size=61,
        decoder_embed_dim=32,
        decoder_attention_heads=4,
        decoder_ffn_embed_dim=48,
        decoder_layers=2,
        no_output_layer=False,
    )
    return m.Decoder(sizes, embed_tokens=torch.nn.Embedding(61, 32))


def torchscale_encoder():
    m = code(
        "torchscale", "torchscale.architecture.encoder", without="fairscale apex torchvision timm"
    )
    config = code("torchscale", "torchscale.architecture.config")
    sizes = config.EncoderConfig(
        vocab_size=61,
        encoder_embed_dim=32,
        encoder_attention_heads=4,
        encoder_ffn_embed_dim=48,
        encoder_layers=2,
    )
    return m.Encoder(sizes, embed_tokens=torch.nn.Embedding(61, 32))


def _zoology(module, name, **sizes):
    m = code(
        "HazyResearch/zoology",
        f"zoology.mixers.{module}",
        beside="opt-einsum",
        without="pydantic_yaml fla wandb",
    )
    return getattr(m, name)(d_model=32, **sizes)


def zoology_attention():
    return _zoology("attention", "MHA", num_heads=4)


def zoology_based():
    return _zoology("based", "Based", feature_dim=4, num_key_value_heads=4, num_heads=4, l_max=64)


def zoology_base_conv():
    return _zoology("base_conv", "BaseConv", l_max=64, kernel_size=3)


def griffin():
    m = code(
        "google-deepmind/recurrentgemma",
        "recurrentgemma.torch.griffin",
        without="jax jaxlib flax orbax sentencepiece jaxtyping typeguard",
    )
    c = code("google-deepmind/recurrentgemma", "recurrentgemma.common")
    config = c.GriffinConfig(
        vocab_size=61,
        width=32,
        mlp_expanded_width=96,
        num_heads=4,
        block_types=(c.TemporalBlockType.RECURRENT, c.TemporalBlockType.ATTENTION),
        embeddings_scale_by_sqrt_dim=True,
        attention_window_size=16,
        logits_soft_cap=30.0,
        lru_width=32,
    )
    model = m.Griffin(config, gradient_checkpointing=False)
    ids = torch.randint(0, 61, (2, 7))
    return qk.Subject(model, example={"tokens": ids, "segment_pos": torch.arange(7).expand(2, 7)})


def olmo():
    m = code(
        "ai2-olmo",
        "olmo.model",
        beside="omegaconf antlr4-python3-runtime",
        without="datasets boto3 botocore google cached_path",
    )
    c = code("ai2-olmo", "olmo.config")
    config = c.ModelConfig(
        d_model=32,
        n_heads=4,
        n_layers=2,
        mlp_ratio=2,
        max_sequence_length=64,
        vocab_size=61,
        embedding_size=64,
        rope=True,
        init_device="cpu",
    )
    return m.OLMo(config)


def hopfield():
    m = code("ml-jku/hopfield-layers", "hflayers")
    return qk.Subject(
        m.Hopfield(input_size=32, hidden_size=8, num_heads=4), example=torch.randn(2, 7, 32)
    )
