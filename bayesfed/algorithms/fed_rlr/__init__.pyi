from .encodings import Factors as Factors
from .encodings import Points as Points
from .encodings import Tangents as Tangents
from .encodings import Transmission as Transmission
from .local import RiemannianSgd as RiemannianSgd
from .recipe import fed_rlr as fed_rlr
from .server import Retract as Retract
