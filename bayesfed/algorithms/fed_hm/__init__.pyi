from .factored import Factored as Factored
from .factored import Refactor as Refactor
from .recipe import fed_hm as fed_hm
