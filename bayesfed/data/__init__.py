"""Real data sets, readers of their files, and partitions of them over clients."""

from bayesfed.data.cifar import cifar10, cifar100
from bayesfed.data.dataset import Dataset, concatenated
from bayesfed.data.idx import fashion_mnist, read_idx
from bayesfed.data.partition import by_domain, dirichlet, federate, iid, shards
from bayesfed.data.synthetic import SparseRegression, blobs, digits, sparse_regression

__all__ = [
    "Dataset",
    "SparseRegression",
    "blobs",
    "by_domain",
    "cifar10",
    "cifar100",
    "concatenated",
    "digits",
    "dirichlet",
    "fashion_mnist",
    "federate",
    "iid",
    "read_idx",
    "shards",
    "sparse_regression",
]
