from .recipe import anycost_fl as anycost_fl
from .recipe import public_settings as public_settings
from .weights import aggregation_weight as aggregation_weight
