"""Linear probing: what it reads, how sure it is, and that it leaves the model as it was."""

import builtins

import pytest
import torch
from torch import nn

import querykey as qk
from querykey.models import Autoencoder, AutoencoderConfig, Encoder, EncoderDecoder, presets
from querykey.models.probe import Probe, features

pytest.importorskip("sklearn", reason="probe fits its classifier with scikit-learn")


def data(count=300, width=12):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, width, generator=generator)
    return x, (x[:, 0] > 0).long()


def test_what_is_linear_is_found_and_what_is_not_there_is_not():
    torch.manual_seed(0)
    x, y = data(800)
    model = Autoencoder(AutoencoderConfig(12, 12))
    nn.init.orthogonal_(model.encoder[0].weight)
    good = qk.probe(model, (x, y))
    assert good.accuracy > 0.93
    assert good.interval[0] <= good.accuracy <= good.interval[1]
    blind = nn.Linear(12, 4)
    nn.init.zeros_(blind.weight)
    assert abs(qk.probe(blind, (x, y)).accuracy - 0.5) < 0.1


def test_seeds_and_the_interval():
    x, y = data()
    report = qk.probe(Autoencoder(AutoencoderConfig(12, 3)), (x, y), seeds=3)
    assert len(report.scores) == 3
    assert str(report).startswith("accuracy 0.")
    known = Probe((0.8, 0.9, 1.0), 0.5)
    low, high = known.interval
    assert abs(known.accuracy - 0.9) < 1e-12
    assert abs((0.9 - low) - 4.302653 * 0.1 / 3**0.5) < 1e-6
    assert high == 1.0


def test_padding_is_not_averaged():
    model = Encoder(presets.bert()).eval()
    ids = torch.randint(0, 128, (4, 7))
    real = torch.arange(7) < torch.tensor([7, 3, 5, 1])[:, None]
    found = features(model, (ids, real), batch=3)
    with torch.no_grad():
        wanted = model.hidden(ids[1:2, :3]).mean(1)[0].double()
    assert (found[1] - wanted).abs().max() < 1e-6


def test_a_second_sequence_is_no_padding():
    model = EncoderDecoder(presets.t5()).eval()
    source, target = torch.randint(0, 128, (4, 7)), torch.randint(2, 128, (4, 5))
    target[:, 0] = 0  # a target begins with a token, and it is a real one
    found = features(model, (source, target), batch=3)
    with torch.no_grad():
        wanted = model(source, target).mean(1).double()
    assert (found - wanted).abs().max() < 1e-6


def test_the_model_stays_as_it_was():
    x, y = data(80)
    model = nn.Sequential(nn.Linear(12, 5), nn.Dropout(0.5), nn.BatchNorm1d(5))
    model[2].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    qk.probe(model, (x, y), seeds=1)
    assert model.training
    assert not model[2].training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_without_scikit_learn_it_says_so(monkeypatch):
    real_import = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match="scikit-learn, which is not installed"):
        qk.probe(nn.Linear(2, 2), (torch.ones(4, 2), torch.ones(4)))


@pytest.mark.parametrize(
    ("given", "options", "error", "words"),
    [
        (lambda x, y: x, {}, TypeError, "probe wants data \\(inputs, labels\\); got Tensor"),
        (lambda x, y: (x, y[:-1]), {}, ValueError, "there are 300 inputs and 299 labels"),
        (lambda x, y: (x, y * 0), {}, ValueError, "two classes or more, .* there are no two"),
        (lambda x, y: (x, [7] + [3] * 299), {}, ValueError, "there is one of 7"),
        (lambda x, y: (x, x[:, 0]), {}, ValueError, "labels are classes"),
        (lambda x, y: (x, y), {"seeds": 0}, ValueError, "one seed or more"),
        (lambda x, y: (x, y), {"test_share": 1.5}, ValueError, "between 0 and 1; got 5 and 1.5"),
    ],
)
def test_what_cannot_be_fitted_is_refused(given, options, error, words):
    with pytest.raises(error, match=words):
        qk.probe(nn.Linear(12, 3), given(*data()), **options)


def test_labels_may_be_words_and_inputs_of_another_float():
    x, y = data(80)
    words = ["b" if each else "a" for each in y]
    model = nn.Linear(12, 3)
    assert qk.probe(model, (x.double(), words)).scores == qk.probe(model, (x, y)).scores
