from .fixed_point import FixedPoint as FixedPoint
from .graphs import Degree as Degree
from .graphs import degree as degree
from .recipe import secure as secure
from .vaults import Vault as Vault
