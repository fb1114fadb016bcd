"""Messages of `bayesfed.models.nets`."""

import tempfile
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import nn

import bayesfed as bf
from bayesfed.models import alexnet, cnn, femnist_cnn, mobilenet, resnet18, text_classifier, vgg9
from bayesfed.models.nets.norms import norm_layer
from tests.data.test_text import encoder

COMPLETE = ("bayesfed/models/nets",)
KEY = bf.Key(0)
IMAGE = (1, 8, 8)


def saved(change=dict):
    """Return a folder with an encoder, of whose weights some are left out."""
    folder = Path(tempfile.mkdtemp())
    encoder().save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    save_file(change(weights), folder / "model.safetensors", {"format": "pt"})
    return folder


def partly(weights):
    """Leave a layer out."""
    return {name: value for name, value in weights.items() if "layer.1" not in name}


CASES = [
    (lambda width: vgg9(IMAGE, 2, KEY, width=width), 0.0),
    (lambda width: resnet18(IMAGE, 2, KEY, width=width), 0.0),
    (lambda norm: norm_layer(8, norm, where="here"), "layer"),
    (lambda image: cnn(image, 2, KEY), (28, 28, 1)),
    (lambda: alexnet((1, 28, 7), 2, KEY), "cnn", lambda: cnn((1, 28, 7), 2, KEY)),
    (
        lambda: vgg9((1, 7, 28), 2, KEY, width=0.1),
        "femnist_cnn",
        lambda: femnist_cnn(2, KEY),
    ),
    (lambda width: mobilenet(IMAGE, 2, KEY, width=width), 0.0),
    (lambda classes: text_classifier(encoder(), classes, KEY), 1),
    (lambda dropout: text_classifier(encoder(), 2, KEY, dropout=dropout), 1.0),
    (
        lambda: text_classifier(nn.Linear(3, 4), 2, KEY),
        "a BertModel",
        lambda: text_classifier(encoder(), 2, KEY),
    ),
    (
        lambda: text_classifier(saved(partly), 2, KEY),
        "the published files",
        lambda: text_classifier(saved(), 2, KEY),
    ),
]
