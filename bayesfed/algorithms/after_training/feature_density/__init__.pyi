from .model import FeatureDensity as FeatureDensity
from .recipe import ClassMoments as ClassMoments
from .recipe import SumOfMoments as SumOfMoments
from .recipe import feature_density as feature_density
