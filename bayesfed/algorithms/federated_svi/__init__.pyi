from .conjugate import conjugate as conjugate
from .local import SviLocal as SviLocal
from .network import NetworkLocal as NetworkLocal
from .recipe import federated_svi as federated_svi
from .server import Fuse as Fuse
