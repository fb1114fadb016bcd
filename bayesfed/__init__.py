"""bayesfed: Bayesian models learned over many devices, honest about uncertainty and small on the wire.

>>> import bayesfed as bf
>>> train, test = bf.digits()
>>> clients = bf.federate(train, bf.dirichlet(train.targets, 10, 0.5, bf.Key(0, "partition")))

Rooms, lowest first: `errors`, `keys`, `trees`; `compress`, `data`; `models`; `inference`; `federated`; `algorithms`,
`inspect`; `running`; `testing`. A lower room never imports a higher one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayesfed.algorithms import anycost_fl as anycost_fl
    from bayesfed.algorithms import batch_statistics as batch_statistics
    from bayesfed.algorithms import bayesian_lora as bayesian_lora
    from bayesfed.algorithms import citation as citation
    from bayesfed.algorithms import conjugate as conjugate
    from bayesfed.algorithms import d_turbo_vbi as d_turbo_vbi
    from bayesfed.algorithms import dssm as dssm
    from bayesfed.algorithms import fed_avg as fed_avg
    from bayesfed.algorithms import fed_hm as fed_hm
    from bayesfed.algorithms import fed_hq as fed_hq
    from bayesfed.algorithms import fed_l1 as fed_l1
    from bayesfed.algorithms import fed_lora as fed_lora
    from bayesfed.algorithms import fed_mid as fed_mid
    from bayesfed.algorithms import fed_paq as fed_paq
    from bayesfed.algorithms import fed_prox as fed_prox
    from bayesfed.algorithms import fed_prune as fed_prune
    from bayesfed.algorithms import fed_rlr as fed_rlr
    from bayesfed.algorithms import fed_stack_lora as fed_stack_lora
    from bayesfed.algorithms import federated_svi as federated_svi
    from bayesfed.algorithms import ffa_lora as ffa_lora
    from bayesfed.algorithms import flex_lora as flex_lora
    from bayesfed.algorithms import fs_lora as fs_lora
    from bayesfed.algorithms import hetero_fl as hetero_fl
    from bayesfed.algorithms import hetero_lora as hetero_lora
    from bayesfed.algorithms import public_settings as public_settings
    from bayesfed.algorithms import qsgd as qsgd
    from bayesfed.algorithms import split_mix as split_mix
    from bayesfed.algorithms import stc as stc
    from bayesfed.algorithms import uveqfed as uveqfed
    from bayesfed.compress import Budgeted as Budgeted
    from bayesfed.compress import Cast as Cast
    from bayesfed.compress import Coded as Coded
    from bayesfed.compress import ErrorFeedback as ErrorFeedback
    from bayesfed.compress import Flexible as Flexible
    from bayesfed.compress import FlexibleMap as FlexibleMap
    from bayesfed.compress import PosteriorGrid as PosteriorGrid
    from bayesfed.compress import fit_flexible as fit_flexible
    from bayesfed.data import Dataset as Dataset
    from bayesfed.data import cifar10 as cifar10
    from bayesfed.data import cifar100 as cifar100
    from bayesfed.data import digits as digits
    from bayesfed.data import dirichlet as dirichlet
    from bayesfed.data import fashion_mnist as fashion_mnist
    from bayesfed.data import federate as federate
    from bayesfed.data import from_csv as from_csv
    from bayesfed.data import from_hugging_face as from_hugging_face
    from bayesfed.data import from_image_folder as from_image_folder
    from bayesfed.data import from_npz as from_npz
    from bayesfed.data import from_torch as from_torch
    from bayesfed.data import held_out as held_out
    from bayesfed.data import iid as iid
    from bayesfed.data import minilm_folder as minilm_folder
    from bayesfed.data import sentiment as sentiment
    from bayesfed.data import tokenised as tokenised
    from bayesfed.data import within_domains as within_domains
    from bayesfed.federated import Adam as Adam
    from bayesfed.federated import ChannelInversion as ChannelInversion
    from bayesfed.federated import Compressed as Compressed
    from bayesfed.federated import Device as Device
    from bayesfed.federated import Factors as Factors
    from bayesfed.federated import Gbma as Gbma
    from bayesfed.federated import Infeasible as Infeasible
    from bayesfed.federated import InProcess as InProcess
    from bayesfed.federated import Krum as Krum
    from bayesfed.federated import Median as Median
    from bayesfed.federated import NaturalGradient as NaturalGradient
    from bayesfed.federated import NormGate as NormGate
    from bayesfed.federated import OverTheAir as OverTheAir
    from bayesfed.federated import Plan as Plan
    from bayesfed.federated import Planner as Planner
    from bayesfed.federated import Points as Points
    from bayesfed.federated import Sgd as Sgd
    from bayesfed.federated import Tangents as Tangents
    from bayesfed.federated import TrimmedMean as TrimmedMean
    from bayesfed.federated import by_device as by_device
    from bayesfed.federated import cosine as cosine
    from bayesfed.federated import decaying as decaying
    from bayesfed.federated import dynamic as dynamic
    from bayesfed.federated import epsilon as epsilon
    from bayesfed.federated import equal_weights as equal_weights
    from bayesfed.federated import fixed as fixed
    from bayesfed.federated import fleet as fleet
    from bayesfed.federated import fraction as fraction
    from bayesfed.federated import in_turn as in_turn
    from bayesfed.federated import on_devices as on_devices
    from bayesfed.federated import plan as plan
    from bayesfed.federated import planned_size as planned_size
    from bayesfed.federated import private as private
    from bayesfed.federated import robust as robust
    from bayesfed.inference import Exchange as Exchange
    from bayesfed.inference import FactorGraph as FactorGraph
    from bayesfed.inference import calibrate as calibrate
    from bayesfed.inference import infer as infer
    from bayesfed.inference.variational.fusion import PVI as PVI
    from bayesfed.inference.variational.fusion import MeanParameters as MeanParameters
    from bayesfed.inference.variational.fusion import ProductOfExperts as ProductOfExperts
    from bayesfed.inference.variational.fusion import ReverseKL as ReverseKL
    from bayesfed.inference.variational.fusion import SummedGradients as SummedGradients
    from bayesfed.inference.variational.fusion import Wasserstein as Wasserstein
    from bayesfed.inspect import partition_table as partition_table
    from bayesfed.inspect import plot_partition as plot_partition
    from bayesfed.keys import Key as Key
    from bayesfed.models import BernoulliGamma as BernoulliGamma
    from bayesfed.models import Categorical as Categorical
    from bayesfed.models import ClusteredSupport as ClusteredSupport
    from bayesfed.models import Gaussian as Gaussian
    from bayesfed.models import Horseshoe as Horseshoe
    from bayesfed.models import Independent as Independent
    from bayesfed.models import Laplace as Laplace
    from bayesfed.models import MarkovGrid as MarkovGrid
    from bayesfed.models import Neighbourhood as Neighbourhood
    from bayesfed.models import Normal as Normal
    from bayesfed.models import Prior as Prior
    from bayesfed.models import ProductGaussian as ProductGaussian
    from bayesfed.models import SliceNormal as SliceNormal
    from bayesfed.models import SpikeAndSlab as SpikeAndSlab
    from bayesfed.models import adapter_prior as adapter_prior
    from bayesfed.models import alexnet as alexnet
    from bayesfed.models import bayesian as bayesian
    from bayesfed.models import channel_graph as channel_graph
    from bayesfed.models import cnn as cnn
    from bayesfed.models import compact as compact
    from bayesfed.models import declare as declare
    from bayesfed.models import hybrid as hybrid
    from bayesfed.models import mlp as mlp
    from bayesfed.models import mobilenet as mobilenet
    from bayesfed.models import resnet18 as resnet18
    from bayesfed.models import resnet34 as resnet34
    from bayesfed.models import shrunk as shrunk
    from bayesfed.models import sort_channels as sort_channels
    from bayesfed.models import whole_first as whole_first
    from bayesfed.models.fixed_rank import fixed_rank as fixed_rank
    from bayesfed.models.lora import lora as lora
    from bayesfed.models.lora import merged as merged
    from bayesfed.models.peft_loading import load_peft as load_peft
    from bayesfed.models.peft_saving import save_peft as save_peft
    from bayesfed.models.text import query_value as query_value
    from bayesfed.models.text import text_classifier as text_classifier
    from bayesfed.running import Result as Result
    from bayesfed.running import run as run

__version__ = "0.1.0"

# Imported at first use, so that `import bayesfed` costs nothing that is not needed.
_HOME = {
    "bayesfed.algorithms": [
        "anycost_fl",
        "batch_statistics",
        "bayesian_lora",
        "citation",
        "conjugate",
        "d_turbo_vbi",
        "dssm",
        "fed_avg",
        "fed_hq",
        "fed_l1",
        "fed_lora",
        "fed_stack_lora",
        "ffa_lora",
        "flex_lora",
        "fs_lora",
        "hetero_lora",
        "fed_mid",
        "fed_paq",
        "fed_prox",
        "fed_hm",
        "fed_prune",
        "hetero_fl",
        "split_mix",
        "fed_rlr",
        "federated_svi",
        "public_settings",
        "qsgd",
        "stc",
        "uveqfed",
    ],
    "bayesfed.compress": ["Budgeted", "Cast", "Coded", "ErrorFeedback", "Flexible", "FlexibleMap", "PosteriorGrid", "fit_flexible"],
    "bayesfed.data": [
        "Dataset",
        "cifar10",
        "cifar100",
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
        "sentiment",
        "tokenised",
        "within_domains",
    ],
    "bayesfed.federated": [
        "Krum",
        "Median",
        "NormGate",
        "TrimmedMean",
        "epsilon",
        "equal_weights",
        "private",
        "robust",
        "Device",
        "Infeasible",
        "Plan",
        "Planner",
        "fleet",
        "on_devices",
        "plan",
        "planned_size",
        "Adam",
        "ChannelInversion",
        "Compressed",
        "Factors",
        "Gbma",
        "InProcess",
        "NaturalGradient",
        "OverTheAir",
        "by_device",
        "dynamic",
        "fixed",
        "Points",
        "Sgd",
        "Tangents",
        "cosine",
        "decaying",
        "fraction",
        "in_turn",
    ],
    "bayesfed.inference": ["Exchange", "FactorGraph", "calibrate", "infer"],
    "bayesfed.inference.variational.fusion": ["MeanParameters", "PVI", "ProductOfExperts", "ReverseKL", "SummedGradients", "Wasserstein"],
    "bayesfed.inspect": ["partition_table", "plot_partition"],
    "bayesfed.keys": ["Key"],
    "bayesfed.models": [
        "BernoulliGamma",
        "Categorical",
        "ClusteredSupport",
        "Independent",
        "MarkovGrid",
        "Neighbourhood",
        "Normal",
        "Prior",
        "SliceNormal",
        "adapter_prior",
        "bayesian",
        "SpikeAndSlab",
        "ProductGaussian",
        "Laplace",
        "Horseshoe",
        "Gaussian",
        "alexnet",
        "channel_graph",
        "cnn",
        "compact",
        "declare",
        "mlp",
        "hybrid",
        "mobilenet",
        "resnet18",
        "resnet34",
        "shrunk",
        "sort_channels",
        "whole_first",
    ],
    "bayesfed.models.fixed_rank": ["fixed_rank"],
    "bayesfed.models.lora": ["lora", "merged"],
    "bayesfed.models.peft_loading": ["load_peft"],
    "bayesfed.models.peft_saving": ["save_peft"],
    "bayesfed.models.text": ["query_value", "text_classifier"],
    "bayesfed.running": ["Result", "run"],
}
_WHERE = {name: home for home, names in _HOME.items() for name in names}
__all__ = sorted(_WHERE)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'bayesfed' has no attribute {name!r}; it has {', '.join(sorted(_WHERE))}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
