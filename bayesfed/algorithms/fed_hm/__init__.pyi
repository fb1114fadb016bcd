from .recipe import fed_hm as fed_hm
from .server import Refactor as Refactor
from .view import Factored as Factored
