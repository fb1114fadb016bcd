from .recipe import laplace as laplace
from .sums import CurvatureSums as CurvatureSums
from .sums import FitGaussian as FitGaussian
