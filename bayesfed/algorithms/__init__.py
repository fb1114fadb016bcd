"""Published systems as recipes: each a function that returns an `Algorithm`."""

from bayesfed.algorithms.anycost_fl import anycost_fl, public_settings
from bayesfed.algorithms.baselines.dssm import dssm
from bayesfed.algorithms.baselines.fed_avg import fed_avg
from bayesfed.algorithms.baselines.fed_hq import fed_hq
from bayesfed.algorithms.baselines.fed_l1 import fed_l1
from bayesfed.algorithms.baselines.fed_lora import fed_lora
from bayesfed.algorithms.baselines.fed_mid import fed_mid
from bayesfed.algorithms.baselines.fed_paq import fed_paq
from bayesfed.algorithms.baselines.fed_prox import fed_prox
from bayesfed.algorithms.baselines.fed_prune import fed_prune
from bayesfed.algorithms.baselines.fed_stack_lora import fed_stack_lora
from bayesfed.algorithms.baselines.ffa_lora import ffa_lora
from bayesfed.algorithms.baselines.flex_lora import flex_lora
from bayesfed.algorithms.baselines.hetero_fl import hetero_fl
from bayesfed.algorithms.baselines.hetero_lora import hetero_lora
from bayesfed.algorithms.baselines.qsgd import qsgd
from bayesfed.algorithms.baselines.split_mix import split_mix
from bayesfed.algorithms.baselines.stc import stc
from bayesfed.algorithms.baselines.uveqfed import uveqfed
from bayesfed.algorithms.batch_statistics import batch_statistics
from bayesfed.algorithms.bayesian_lora import bayesian_lora
from bayesfed.algorithms.citing import citation
from bayesfed.algorithms.conjugate import conjugate
from bayesfed.algorithms.d_turbo_vbi import d_turbo_vbi
from bayesfed.algorithms.fed_hm import fed_hm
from bayesfed.algorithms.fed_rlr import fed_rlr
from bayesfed.algorithms.federated_svi import federated_svi
from bayesfed.algorithms.fs_lora import fs_lora

__all__ = [
    "anycost_fl",
    "batch_statistics",
    "bayesian_lora",
    "citation",
    "conjugate",
    "d_turbo_vbi",
    "dssm",
    "fed_avg",
    "fed_hm",
    "fed_hq",
    "fed_l1",
    "fed_lora",
    "fed_mid",
    "fed_paq",
    "fed_prox",
    "fed_prune",
    "fed_rlr",
    "fed_stack_lora",
    "federated_svi",
    "ffa_lora",
    "flex_lora",
    "fs_lora",
    "hetero_fl",
    "hetero_lora",
    "public_settings",
    "qsgd",
    "split_mix",
    "stc",
    "uveqfed",
]
