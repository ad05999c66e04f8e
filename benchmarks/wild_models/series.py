"""Models of time series, and of sequences of choices."""

from types import SimpleNamespace

import torch
from found import code

import querykey as qk

SETTINGS = {
    "task_name": "long_term_forecast",
    "seq_len": 16,
    "label_len": 8,
    "pred_len": 8,
    "enc_in": 5,
    "dec_in": 5,
    "c_out": 5,
    "d_model": 32,
    "d_ff": 48,
    "n_heads": 4,
    "e_layers": 2,
    "d_layers": 1,
    "dropout": 0.1,
    "factor": 3,
    "embed": "timeF",
    "freq": "h",
    "activation": "gelu",
    "moving_avg": 5,
    "distil": False,
    "top_k": 2,
    "num_kernels": 2,
    "num_class": 3,
    "p_hidden_dims": [16, 16],
    "p_hidden_layers": 2,
    "seg_len": 4,
    "individual": False,
    "expand": 2,
    "d_conv": 4,
}


def _forecaster(name):
    m = code("thuml/Time-Series-Library", f"models.{name}", without="reformer_pytorch sktime")
    model = m.Model(SimpleNamespace(**SETTINGS))
    past, future = torch.randn(2, 16, 5), torch.randn(2, 16, 5)
    marks = torch.randn(2, 16, 4)

    def forward(x):
        return model(
            x,
            marks[:1].expand(len(x), -1, -1),
            future[:1].expand(len(x), -1, -1),
            marks[:1].expand(len(x), -1, -1),
        )

    return qk.Subject(forward, example=past)


def autoformer():
    return _forecaster("Autoformer")


def patch_tst():
    return _forecaster("PatchTST")


def inverted():
    return _forecaster("iTransformer")


def d_linear():
    return _forecaster("DLinear")


def informer_library():
    return _forecaster("Informer")


def times_net():
    return _forecaster("TimesNet")


def nonstationary():
    return _forecaster("Nonstationary_Transformer")


def fedformer():
    return _forecaster("FEDformer")


def crossformer():
    return _forecaster("Crossformer")


def seg_rnn():
    return _forecaster("SegRNN")


def ts_mixer():
    return _forecaster("TSMixer")


def mamba_simple():
    return _forecaster("MambaSimple")


def informer():
    m = code("zhouhaoyi/Informer2020", "models.model")
    model = m.Informer(
        5,
        5,
        5,
        16,
        8,
        8,
        d_model=32,
        n_heads=4,
        e_layers=2,
        d_layers=1,
        d_ff=48,
        embed="timeF",
        attn="full",
        distil=False,
        device="cpu",
    )
    past, future, marks = torch.randn(2, 16, 5), torch.randn(2, 16, 5), torch.randn(2, 16, 4)
    return qk.Subject(
        model, example={"x_enc": past, "x_mark_enc": marks, "x_dec": future, "x_mark_dec": marks}
    )


def tsai_tst():
    m = code("tsai", "tsai.models.TST", without="fastai psutil")
    return m.TST(5, 3, 16, n_layers=2, d_model=32, n_heads=4, d_ff=48)


def lucid_inverted():
    m = code("iTransformer", "iTransformer")
    model = m.iTransformer(
        num_variates=5, lookback_len=16, depth=2, dim=32, pred_length=8, heads=4, dim_head=8
    )
    return qk.Subject(lambda x: model(x)[8], example=torch.randn(2, 16, 5))


def tcn_words():
    return _tcn("word_cnn").TCN(32, 61, [32, 32], kernel_size=2)


def _tcn(name):
    import sys

    from found import folder

    sys.path.insert(0, str(folder("locuslab/TCN")))
    return code("locuslab/TCN", "model", under=f"TCN/{name}")


def tcn_copy():
    return _tcn("copy_memory").TCN(1, 7, [16, 16], 3, 0.1)


def conv_lstm():
    m = code("ndrplz/ConvLSTM_pytorch", "convlstm")
    model = m.ConvLSTM(2, [4], (3, 3), 1, batch_first=True)

    def forward(x):
        return model(x)[0][0]

    return qk.Subject(forward, example=torch.randn(2, 5, 2, 4, 4))


def decision_transformer():
    import transformers

    then = transformers.modeling_utils  # which held these in 2021
    then.Conv1D, then.SequenceSummary = transformers.pytorch_utils.Conv1D, None
    then.find_pruneable_heads_and_indices = then.prune_conv1d_layer = None
    m = code(
        "kzl/decision-transformer", "decision_transformer.models.decision_transformer", under="gym"
    )
    model = m.DecisionTransformer(
        3, 2, 32, max_length=16, max_ep_len=64, n_layer=2, n_head=4, n_inner=64
    )
    steps = torch.arange(7).expand(2, 7)
    return qk.Subject(
        model,
        example={
            "states": torch.randn(2, 7, 3),
            "actions": torch.randn(2, 7, 2),
            "rewards": torch.randn(2, 7, 1),
            "returns_to_go": torch.randn(2, 7, 1),
            "timesteps": steps,
        },
    )


def sasrec():
    m = code("pmixer/SASRec.pytorch", "model", under="python")
    args = SimpleNamespace(
        device="cpu",
        norm_first=True,
        hidden_units=32,
        maxlen=64,
        dropout_rate=0.1,
        num_blocks=2,
        num_heads=4,
    )
    model = m.SASRec(7, 60, args)
    return qk.Subject(
        lambda ids: model.log2feats(ids.numpy()), example=torch.randint(1, 61, (2, 7))
    )


def route_encoder():
    m = code("wouterkool/attention-learn-to-route", "nets.graph_encoder")
    model = m.GraphAttentionEncoder(4, 32, 2, node_dim=2, feed_forward_hidden=48)
    return qk.Subject(lambda x: model(x)[0], example=torch.randn(2, 7, 2))


def graph_transformer():
    m = code("graph-transformer-pytorch", "graph_transformer_pytorch")
    model = m.GraphTransformer(32, 2, dim_head=8, edge_dim=8, heads=4, with_feedforwards=True)

    def forward(nodes):
        edges = nodes[:, :, None, :8] * nodes[:, None, :, 8:16]
        return model(nodes, edges)[0]

    return qk.Subject(forward, example=torch.randn(2, 7, 32))


def egnn():
    m = code("egnn-pytorch", "egnn_pytorch")
    model = m.EGNN_Network(depth=2, dim=16, num_tokens=11)
    return qk.Subject(
        lambda feats, coors: model(feats, coors),
        example=(torch.randint(0, 11, (2, 7)), torch.randn(2, 7, 3)),
    )


def point_transformer():
    m = code("point-transformer-pytorch", "point_transformer_pytorch")
    model = m.PointTransformerLayer(dim=16, num_neighbors=4)
    return qk.Subject(model, example={"x": torch.randn(2, 9, 16), "pos": torch.randn(2, 9, 3)})


def tab_transformer():
    m = code("tab-transformer-pytorch", "tab_transformer_pytorch")
    model = m.FTTransformer(
        categories=(5, 7, 4), num_continuous=3, dim=16, depth=2, heads=4, dim_head=8
    )
    rows = torch.tensor([[1, 2, 3], [4, 6, 0]])
    return qk.Subject(model, example={"x_categ": rows, "x_numer": torch.randn(2, 3)})


def slot_attention():
    return code("slot-attention", "slot_attention").SlotAttention(num_slots=4, dim=32)
