"""Real data sets, readers of their files, and partitions of them over clients."""

from bayesfed.data.cifar import cifar10, cifar100
from bayesfed.data.dataset import Dataset, concatenated
from bayesfed.data.hugging_face import from_hugging_face
from bayesfed.data.idx import fashion_mnist, read_idx
from bayesfed.data.images import from_image_folder
from bayesfed.data.npz import from_npz
from bayesfed.data.partition import by_domain, dirichlet, federate, held_out, iid, shards, within_domains
from bayesfed.data.pretrained import minilm_folder
from bayesfed.data.sentiment import sentiment
from bayesfed.data.synthetic import SparseRegression, blobs, digits, sparse_regression
from bayesfed.data.tables import from_csv
from bayesfed.data.texts import Texts
from bayesfed.data.tokens import tokenised
from bayesfed.data.torch_sets import from_torch

__all__ = [
    "Dataset",
    "SparseRegression",
    "Texts",
    "blobs",
    "by_domain",
    "cifar10",
    "cifar100",
    "concatenated",
    "digits",
    "dirichlet",
    "fashion_mnist",
    "federate",
    "from_csv",
    "from_hugging_face",
    "from_image_folder",
    "from_npz",
    "from_torch",
    "held_out",
    "iid",
    "minilm_folder",
    "read_idx",
    "sentiment",
    "shards",
    "sparse_regression",
    "tokenised",
    "within_domains",
]
