"""Language models: tutorials, and the code that grew out of them."""

import torch
from found import code, definitions

import querykey as qk


def mingpt():
    GPT = code("karpathy/minGPT", "mingpt.model").GPT
    config = GPT.get_default_config()
    config.model_type, config.vocab_size, config.block_size = "gpt-nano", 61, 64
    return GPT(config)


def nanogpt():
    m = code("karpathy/nanoGPT", "model")
    return m.GPT(m.GPTConfig(block_size=64, vocab_size=61, n_layer=2, n_head=4, n_embd=32))


def build_nanogpt():
    m = definitions("karpathy/build-nanogpt", "train_gpt2.py", "hellaswag tiktoken")
    return m.GPT(m.GPTConfig(block_size=64, vocab_size=61, n_layer=2, n_head=4, n_embd=32))


def nanochat():
    m = code("karpathy/nanochat", "nanochat.gpt", without="wandb tiktoken rustbpe filelock")
    sizes = {
        "sequence_len": 64,
        "vocab_size": 64,
        "n_layer": 4,
        "n_head": 4,
        "n_kv_head": 2,
        "n_embd": 64,
    }
    model = m.GPT(m.GPTConfig(**sizes))
    model.init_weights()
    return model


def llama2_c():
    m = code("karpathy/llama2.c", "model")
    return m.Transformer(
        m.ModelArgs(
            dim=32,
            n_layers=2,
            n_heads=4,
            n_kv_heads=2,
            vocab_size=61,
            multiple_of=8,
            max_seq_len=64,
        )
    )


def video_lecture():
    m = definitions(
        "karpathy/ng-video-lecture",
        "gpt.py",
        block_size=64,
        n_embd=32,
        n_head=4,
        n_layer=2,
        dropout=0.2,
        vocab_size=61,
        device="cpu",
    )
    return m.GPTLanguageModel()


def video_lecture_bigram():
    m = definitions("karpathy/ng-video-lecture", "bigram.py", vocab_size=61, device="cpu")
    return m.BigramLanguageModel(61)


def _makemore(name, *more):
    m = code("karpathy/makemore", "makemore", without="torch.utils.tensorboard")
    config = m.ModelConfig(block_size=64, vocab_size=61, n_layer=2, n_embd=32, n_embd2=32, n_head=4)
    return getattr(m, name)(config, *more)


def makemore_transformer():
    return _makemore("Transformer")


def makemore_bow():
    return _makemore("BoW")


def makemore_rnn():
    return _makemore("RNN", "rnn")


def makemore_gru():
    return _makemore("RNN", "gru")


def makemore_mlp():
    m = code("karpathy/makemore", "makemore", without="torch.utils.tensorboard")
    return m.MLP(m.ModelConfig(block_size=3, vocab_size=61, n_embd=16, n_embd2=32))


def minimind():
    m = code("jingyaogong/minimind", "model.model_minimind")
    return m.MiniMindForCausalLM(
        m.MiniMindConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=61,
            max_position_embeddings=256,
        )
    )


def minimind_moe():
    m = code("jingyaogong/minimind", "model.model_minimind")
    return m.MiniMindForCausalLM(
        m.MiniMindConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=61,
            use_moe=True,
            max_position_embeddings=256,
        )
    )


def mamba_minimal():
    m = code("johnma2006/mamba-minimal", "model")
    return m.Mamba(m.ModelArgs(d_model=32, n_layer=2, vocab_size=64))


def former_generator():
    m = code(
        "pbloem/former", "former.transformers", without="torchtext tqdm torch.utils.tensorboard"
    )
    return m.GTransformer(emb=32, heads=4, depth=2, seq_length=64, num_tokens=61)


def former_relative():
    m = code(
        "pbloem/former", "former.transformers", without="torchtext tqdm torch.utils.tensorboard"
    )
    return m.GTransformer(
        emb=32, heads=4, depth=2, seq_length=64, num_tokens=61, attention_type="relative"
    )


def former_classifier():
    m = code(
        "pbloem/former", "former.transformers", without="torchtext tqdm torch.utils.tensorboard"
    )
    return m.CTransformer(emb=32, heads=4, depth=2, seq_length=64, num_tokens=61, num_classes=5)


def lingua():
    m = code("facebookresearch/lingua", "lingua.transformer", without="xformers fire omegaconf")
    return m.BaseTransformer(m.BaseTransformerArgs(dim=32, n_layers=2, n_heads=4, max_seqlen=64))


def retnet():
    m = code("Jamie-Stirling/RetNet", "retnet", under="src")
    return m.RetNet(layers=2, hidden_dim=32, ffn_size=64, heads=4)


def _recurrent(model):
    """Positions come first in these, and the state is given by the caller."""

    def forward(ids):
        scores = model(ids.T, model.init_hidden(len(ids)))[0]
        return scores.view(ids.shape[1], len(ids), -1).transpose(0, 1)

    return qk.Subject(forward, example=torch.randint(0, 61, (2, 7)))


def awd_lstm():
    m = code("salesforce/awd-lstm-lm", "model")
    return _recurrent(m.RNNModel("LSTM", 61, 32, 48, 2))


def word_language_lstm():
    m = code("pytorch/examples", "model", under="word_language_model")
    return _recurrent(m.RNNModel("LSTM", 61, 32, 32, 2))


def word_language_transformer():
    m = code("pytorch/examples", "model", under="word_language_model")
    return m.TransformerModel(61, 32, 4, 64, 2)
