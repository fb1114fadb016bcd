from .model import CalibratedModel as CalibratedModel
from .recipe import calibrated as calibrated
from .sums import GridOfTemperatures as GridOfTemperatures
from .sums import ScoreHistograms as ScoreHistograms
