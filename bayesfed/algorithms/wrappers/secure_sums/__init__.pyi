from .fixed_point import FixedPoint as FixedPoint
from .graphs import Degree as Degree
from .graphs import degree as degree
from .locals import Vault as Vault
from .recipe import secure as secure
