"""Models of sound: conformers, streaming encoders, codecs, and recognisers."""

import torch
from found import code

import querykey as qk

TORCHAUDIO = " ".join(
    f"torchaudio.{name}"
    for name in [
        "_extension",
        "_internal",
        "functional",
        "transforms",
        "compliance",
        "datasets",
        "pipelines",
        "io",
        "utils",
        "backend",
        "sox_effects",
        "kaldi_io",
        "_torchcodec",
        "prototype",
    ]
)


def _full(x):
    """Return the length of every row: no row ends earlier."""
    return torch.full((len(x),), x.shape[1])


def conformer():
    m = code("conformer", "conformer")
    return m.Conformer(dim=32, depth=2, dim_head=8, heads=4, conv_kernel_size=5)


def conformer_causal():
    m = code("conformer", "conformer")
    return m.Conformer(dim=32, depth=2, dim_head=8, heads=4, conv_kernel_size=5, conv_causal=True)


def sooftware_conformer():
    m = code("sooftware/conformer", "conformer.model")
    model = m.Conformer(
        7, input_dim=16, encoder_dim=32, num_encoder_layers=2, num_attention_heads=4
    )
    return qk.Subject(lambda x: model(x, _full(x))[0], example=torch.randn(2, 40, 16))


def torchaudio_conformer():
    m = code("torchaudio", "torchaudio.models.conformer", without=TORCHAUDIO)
    model = m.Conformer(16, 4, 32, 2, 5)
    return qk.Subject(lambda x: model(x, _full(x))[0], example=torch.randn(2, 13, 16))


def wenet():
    m = code(
        "wenet-e2e/wenet",
        "wenet.models.transformer.encoder",
        without="librosa torchaudio whisper openai_whisper langid jieba requests wenet.dataset",
    )
    model = m.TransformerEncoder(16, 32, 4, 64, 2, input_layer="linear")

    return qk.Subject(lambda x: model(x, _full(x), -1)[0], example=torch.randn(2, 13, 16))


def wenet_chunks():
    m = code(
        "wenet-e2e/wenet",
        "wenet.models.transformer.encoder",
        without="librosa torchaudio whisper openai_whisper langid jieba requests wenet.dataset",
    )
    model = m.ConformerEncoder(
        16,
        32,
        4,
        64,
        2,
        input_layer="linear",
        causal=True,
        cnn_module_norm="layer_norm",
        static_chunk_size=4,
    )

    return qk.Subject(lambda x: model(x, _full(x))[0], example=torch.randn(2, 13, 16))


def whisper():
    m = code(
        "openai-whisper",
        "whisper.model",
        without="numba tiktoken whisper.decoding whisper.transcribe",
    )
    sizes = m.ModelDimensions(8, 20, 32, 4, 2, 61, 64, 32, 4, 2)
    decoder = m.Whisper(sizes).decoder
    decoder.positional_embedding.data.normal_()  # made by torch.empty
    return qk.Subject(
        lambda heard, tokens: decoder(tokens, heard),
        example=(torch.randn(2, 20, 32), torch.randint(0, 61, (2, 7))),
    )


def encodec_transformer():
    m = code("encodec", "encodec.modules.transformer", without="encodec.utils")
    return m.StreamingTransformerEncoder(32, num_heads=4, num_layers=2)


def encodec_lm():
    m = code("encodec", "encodec.model", without="encodec.utils")
    model = m.LMModel(n_q=2, card=60, dim=32, num_heads=4, num_layers=2)

    def forward(codes):
        return model(codes.transpose(1, 2))[0].permute(0, 3, 1, 2).flatten(2)

    return qk.Subject(forward, example=torch.randint(0, 61, (2, 7, 2)))


def conv_tasnet():
    m = code(
        "asteroid",
        "asteroid.masknn.convolutional",
        without="asteroid.models asteroid.data huggingface_hub_",
    )
    return m.TDConvNet(
        8,
        2,
        n_blocks=2,
        n_repeats=1,
        bn_chan=8,
        hid_chan=16,
        skip_chan=8,
        causal=True,
        norm_type="cLN",
    )


def dptnet():
    m = code("asteroid", "asteroid.masknn.attention", without="asteroid.models asteroid.data")
    return m.DPTransformer(16, 2, n_heads=4, ff_hid=24, chunk_size=6, n_repeats=1)


def demucs():
    m = code("facebookresearch/denoiser", "denoiser.demucs", without="julius")
    return m.Demucs(hidden=8, depth=2, resample=1, normalize=False)


def tacotron_encoder():
    from types import SimpleNamespace

    m = code("NVIDIA/tacotron2", "model", without="librosa inflect unidecode tensorflow")
    model = m.Encoder(
        SimpleNamespace(encoder_n_convolutions=2, encoder_embedding_dim=32, encoder_kernel_size=5)
    )
    return qk.Subject(lambda x: model(x.transpose(1, 2), _full(x)), example=torch.randn(2, 13, 32))


def moshi():
    m = code(
        "kyutai-labs/moshi",
        "moshi.modules.transformer",
        under="moshi",
        without="sphn aiohttp bitsandbytes sentencepiece",
    )
    return m.StreamingTransformer(32, 4, 2, 64, causal=True, context=8, positional_embedding="rope")


def tcn_streaming():
    return code("pytorch-tcn", "pytorch_tcn").TCN(8, [16, 16], kernel_size=3, causal=True)


def wav2vec_like():
    m = code("torchaudio", "torchaudio.models.wav2vec2", without=TORCHAUDIO)
    return m.wav2vec2_model(
        "layer_norm",
        [(16, 4, 2), (16, 3, 2)],
        False,
        32,
        0.1,
        8,
        4,
        2,
        4,
        0.1,
        48,
        0.1,
        0.1,
        False,
        0.0,
        7,
    )


def emformer():
    m = code("torchaudio", "torchaudio.models.emformer", without=TORCHAUDIO)
    model = m.Emformer(16, 4, 32, 2, 4, left_context_length=4, right_context_length=1)
    return qk.Subject(lambda x: model(x, _full(x) - 1)[0], example=torch.randn(2, 13, 16))
