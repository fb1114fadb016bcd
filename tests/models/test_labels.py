"""Labels by token and by pixel: against torch's cross-entropy and scikit-learn, in recipes, in
scores; places that do not count count nowhere.
"""

import pytest
import torch
from sklearn import metrics
from torch import nn
from torch.nn import functional

import bayesfed as bf
from bayesfed import models
from bayesfed.errors import ArgumentError, BayesfedError, DataError
from bayesfed.federated.training.likelihoods import likelihoods_of
from bayesfed.models.likelihoods.rows import redrawn

ROWS, LONG, WORDS, CLASSES = 40, 5, 9, 3
NOISE = bf.Key(0, "labels").generator()
IDS = torch.randint(WORDS, (ROWS, LONG), generator=NOISE)
TAGS = torch.where(torch.rand(ROWS, LONG, generator=NOISE) < 0.4, -100, IDS % CLASSES)
TAGS[3] = -100
DATA = bf.Dataset(IDS, TAGS)
CLIENTS = bf.federate(DATA, dict(zip("ab", bf.iid(ROWS, 2, bf.Key(0)), strict=True)))
COUNTS = TAGS >= 0
WORK = bf.Training(steps=15, batch_size=16, optimiser=bf.Adam(0.05))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.out = nn.Embedding(WORDS, 6), nn.Linear(6, CLASSES)

    def forward(self, ids):
        return self.out(self.words(ids))


def log_loss(labels, shares):
    return pytest.approx(metrics.log_loss(labels, shares / shares.sum(1, keepdim=True)), abs=1e-4)


def methods(likelihood):
    net = Tagger()
    return {
        "fed_avg": lambda: bf.fed_avg(net, likelihood=likelihood, training=WORK),
        "federated_svi": lambda: bf.federated_svi(
            models.bayesian(net, likelihood=likelihood),
            example=DATA[:2],
            observations=ROWS,
            training=WORK,
        ),
        "d_turbo_vbi": lambda: bf.d_turbo_vbi(
            bf.declare(net, likelihood=likelihood), observations=ROWS, training=WORK
        ),
        "fed_lora": lambda: bf.fed_lora(
            bf.lora(net, 3, bf.Key(0), where=models.layer_weights),
            likelihood=likelihood,
            training=WORK,
        ),
    }


@pytest.mark.parametrize("shape", [(LONG,), (4, 2), ()])
@pytest.mark.parametrize("weights", [None, (1.0, 2.0, 0.5)])
def test_a_row_has_the_sum_of_its_labels_as_torch_has_it(shape, weights):
    logits = torch.randn(ROWS, CLASSES, *shape, generator=NOISE)
    labels = torch.randint(-1, CLASSES, (ROWS, *shape), generator=NOISE)
    each = functional.cross_entropy(
        logits,
        labels,
        weights and torch.tensor(weights),
        ignore_index=-1,
        reduction="none",
        label_smoothing=0.1,
    )
    expected = -each.reshape(ROWS, -1).sum(1)
    inner = models.Categorical(weights=weights, smoothing=0.1)
    for axis, outputs in ((1, logits), (-1, logits.movedim(1, -1))):
        likelihood = models.Labels(inner, ignored=-1, axis=axis)
        likelihood.check(outputs, labels)
        found = likelihood.pointwise(outputs, labels)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(likelihood.loss(outputs, labels), -expected.mean())
        torch.testing.assert_close(likelihood.distribution(outputs).log_prob(labels), expected)


def test_training_on_rows_of_labels_is_training_on_labels_as_rows():
    """At a rate that makes up for the mean over rows in place of one over labels."""
    many, flat = int(COUNTS.sum()), bf.Dataset(IDS[COUNTS], TAGS[COUNTS])
    found = []
    for data, likelihood, rate in (
        (DATA, models.Labels(), 0.05),
        (flat, models.Categorical(), 0.05 * many / ROWS),
    ):
        work = bf.Training(steps=10, batch_size=None, optimiser=bf.Sgd(rate))
        algorithm = bf.fed_avg(Tagger(), likelihood=likelihood, training=work)
        found.append(bf.run(algorithm, {"a": data}, rounds=2, progress=False).model.parameters)
    for name, leaf in found[0].items():
        torch.testing.assert_close(leaf, found[1][name])


@pytest.mark.parametrize("method", methods(None))
def test_recipes_train_and_score_the_labels_that_count(method):
    algorithm = methods(models.Labels())[method]()
    assert len(likelihoods_of([algorithm])) == 1
    nll = bf.federated.evaluate(DATA, metric="nll")
    result = bf.run(algorithm, CLIENTS, rounds=4, test=DATA, callbacks=[nll], progress=False)
    outputs = result.model(DATA.inputs)[COUNTS].double()
    right = metrics.accuracy_score(TAGS[COUNTS], outputs.argmax(1))
    assert result.final("accuracy") == pytest.approx(right)
    assert right > 0.8
    shares = outputs if method == "federated_svi" else outputs.softmax(1)
    assert result.final("nll") == log_loss(TAGS[COUNTS], shares)
    if result.algorithm.posterior is None:
        own = result.personal_scores(dict(CLIENTS)).clients["a"]
        part = CLIENTS["a"]
        shares = result.model(part.inputs)[part.targets >= 0].double().softmax(1)
        assert own["nll"] == log_loss(part.targets[part.targets >= 0], shares)


def test_scores_of_a_posterior_are_those_of_labels_by_client_and_together():
    result = bf.run(methods(models.Labels())["federated_svi"](), CLIENTS, rounds=2, progress=False)
    found = result.scores(CLIENTS, draws=4)
    together = bf.data.concatenated([*CLIENTS.values()])
    shares = result.predictive(together.inputs, draws=4).mean
    first = 0
    for name, part in [*CLIENTS.items(), ("all", together)]:
        here = shares if name == "all" else shares[first : first + len(part)]
        first += len(part)
        labels, mean = part.targets[part.targets >= 0], here[part.targets >= 0].double()
        assert found[name]["nll"] == log_loss(labels, mean)
        assert found[name]["accuracy"] == pytest.approx(
            metrics.accuracy_score(labels, mean.argmax(1))
        )


def test_curvature_draws_no_labels_where_none_count():
    given = models.Labels().distribution(torch.zeros(ROWS, LONG, CLASSES))
    drawn = redrawn(given, TAGS)
    assert torch.equal(drawn < 0, ~COUNTS)
    assert (drawn[COUNTS] != TAGS[COUNTS]).any()


def test_classes_with_weights_are_predicted_by_their_probabilities():
    weighted = models.bayesian(nn.Linear(3, 2), likelihood=models.Categorical(weights=(1.0, 2.0)))
    data = bf.Dataset(torch.randn(20, 3, generator=NOISE), torch.arange(20) % 2)
    algorithm = bf.federated_svi(weighted, observations=20, example=data[:2], training=WORK)
    shares = bf.run(algorithm, {"a": data}, rounds=1, test=data, progress=False).model(data.inputs)
    torch.testing.assert_close(shares.sum(1), torch.ones(20))


@pytest.mark.parametrize("method", methods(None))
def test_one_label_a_row_is_refused_for_labels_by_place(method):
    with pytest.raises(BayesfedError, match=r"likelihood=bayesfed.models.Labels\("):
        bf.run(methods(bf.Categorical())[method](), CLIENTS, rounds=1, progress=False)


@pytest.mark.parametrize(
    ("likelihood", "shape", "labels", "words"),
    [
        (models.Labels(), (2, CLASSES, 4), [[0, 1, 2, 0]] * 2, r"try .*Labels\(axis=1\)"),
        (models.Labels(axis=1), (2, 4, CLASSES), [[0, 1, 2, 0]] * 2, r"try .*Labels\(axis=-1\)"),
        (
            models.Labels(),
            (2, 4, CLASSES),
            [[0, 1, 2, -1]] * 2,
            "or -100, found -1; try ignored=-1",
        ),
        (models.Labels(), (2, 4, CLASSES), [[0, 1, 2, 3]] * 2, "0 to 2, the network's outputs"),
        (models.Labels(), (2, 4, CLASSES), [[0.0, 1, 2, 1]] * 2, r"try targets.long\(\)"),
    ],
)
def test_labels_that_do_not_fit_are_refused_where_they_come_in(likelihood, shape, labels, words):
    with pytest.raises(DataError, match=words):
        likelihood.check(torch.zeros(shape), torch.tensor(labels))


def test_what_needs_one_label_a_row_says_so():
    with pytest.raises(ArgumentError, match="curvature the outputs alone say"):
        bf.laplace(Tagger(), likelihood=models.Labels())
    with pytest.raises(DataError, match="class labels from 0"):
        bf.Dataset(IDS, TAGS[:, 0])
    masked = bf.fed_avg(Tagger(), masked=True, training=WORK)
    with pytest.raises(BayesfedError, match=r"try likelihood=bayesfed.models.Labels\(axis=-1\)"):
        bf.run(masked, CLIENTS, rounds=1, progress=False)
