"""Rows that are dicts and tuples of tensors: a run on them is, bit for bit, that on one tensor."""

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

import bayesfed as bf
from bayesfed.data.packed import taken_apart
from bayesfed.errors import DataError


class Whole(nn.Module):
    """A network of one tensor, whose first columns are whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(5, 4)
        self.out = nn.Linear(8, 3)

    def scored(self, words: Tensor, numbers: Tensor) -> Tensor:
        return self.out(torch.cat([self.words(words).mean(1), numbers], 1))

    def forward(self, rows: Tensor) -> Tensor:
        return self.scored(rows[:, :2].long(), rows[:, 2:])


class ByName(Whole):
    def forward(self, *, numbers, words):
        assert words.dtype == torch.int64
        return OrderedDict(loss=numbers.sum(), logits=self.scored(words, numbers))


class ByPlace(Whole):
    def forward(self, words: Tensor, numbers: Tensor) -> Tensor:  # type: ignore[override]
        return self.scored(words, numbers)


def rows() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(5, (60, 2), generator=generator)
    numbers = torch.randn(60, 4, generator=generator)
    return words, numbers, words.sum(1) % 3


WORDS, NUMBERS, TARGETS = rows()
KINDS = {
    "dict": (ByName, {"words": WORDS, "numbers": NUMBERS}),
    "tuple": (ByPlace, (WORDS, NUMBERS)),
    "tensor": (Whole, torch.cat([WORDS.float(), NUMBERS], 1)),
}
PARTS = {"a": torch.arange(25), "b": torch.arange(25, 50)}
WORK = bf.Training(steps=3, batch_size=8)
METHODS = {
    "fed_avg": lambda net, data: bf.fed_avg(net, training=WORK),
    "fed_lora": lambda net, data: bf.fed_lora(bf.lora(net, 2, bf.Key(0, "l")), training=WORK),
    "federated_svi": lambda net, data: bf.federated_svi(
        bf.models.bayesian(net), example=data[:2], observations=50, training=WORK
    ),
    "d_turbo_vbi": lambda net, data: bf.d_turbo_vbi(
        bf.models.declare(net), observations=50, training=WORK
    ),
}


def fitted(method: str, kind: str, **settings: object) -> Tensor:
    """Return the outputs of a run's model for rows outside the run."""
    net, inputs = KINDS[kind]
    data = bf.Dataset(inputs, TARGETS)  # type: ignore[arg-type]
    algorithm, pool = (
        METHODS[method](net(), data),
        bf.InProcess(bf.federate(data, PARTS), **settings),
    )  # type: ignore[arg-type]
    found = bf.run(algorithm, pool, rounds=2, test=data[50:])
    return found.model(data[50:].inputs)


@pytest.mark.parametrize("kind", ["dict", "tuple"])
@pytest.mark.parametrize("method", METHODS)
def test_rows_that_are_trees_train_as_one_tensor_does(method: str, kind: str) -> None:
    assert torch.equal(fitted(method, kind), fitted(method, "tensor"))


def test_leaves_come_back_as_they_went_in_whatever_was_done_to_the_rows() -> None:
    leaves = {"ids": WORDS, "mask": WORDS > 2, "half": NUMBERS.half(), "scalar": NUMBERS[:, 0]}
    data = bf.Dataset(leaves, TARGETS)  # type: ignore[arg-type]
    order = torch.tensor([3, 1, 3])
    for part in (data[order], bf.data.concatenated([data[3:4], data[1:2], data[3:4]])):
        given, named = taken_apart(part.inputs)
        assert not given
        assert list(named) == list(leaves)
        for name, leaf in leaves.items():
            assert named[name].dtype == leaf.dtype
            assert torch.equal(named[name], leaf[order])


def test_leaves_of_other_lengths_are_refused() -> None:
    with pytest.raises(DataError, match="tensors of one length"):
        bf.Dataset({"ids": WORDS, "mask": WORDS[:3]}, TARGETS)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="'b': expected finite real numbers"):
        bf.Dataset({"a": WORDS, "b": NUMBERS / 0}, TARGETS)  # type: ignore[arg-type]


def test_columns_of_tokens_stay_whole_numbers_by_name() -> None:
    class Split(list):  # type: ignore[type-arg]
        features = dict.fromkeys(("input_ids", "score", "label"))

    rows = [{"input_ids": [101, 70_000_001], "score": 0.5, "label": n % 2} for n in range(4)]
    data = bf.data.from_hugging_face(Split(rows), inputs=["input_ids", "score"])
    _, named = taken_apart(data.inputs)
    assert named["input_ids"].dtype == torch.int64
    assert named["score"].shape == (4,)
    assert named["input_ids"][0].tolist() == [101, 70_000_001]


@pytest.mark.parametrize("settings", [{"cohort": "auto"}, {"workers": 2}])
def test_rows_that_are_trees_go_to_workers_and_cohorts(settings: dict[str, object]) -> None:
    assert torch.allclose(fitted("fed_avg", "tuple", **settings), fitted("fed_avg", "tuple"))
