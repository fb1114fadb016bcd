from .ensembles import EachNet as EachNet
from .ensembles import Ensemble as Ensemble
from .ensembles import Nets as Nets
from .recipe import split_mix as split_mix
