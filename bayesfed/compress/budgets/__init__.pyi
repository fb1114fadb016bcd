from .budgeted import Budgeted as Budgeted
from .fitting import fit_flexible as fit_flexible
from .flexible_map import FlexibleMap as FlexibleMap
from .flexible_map import Setting as Setting
from .flexible_map import full_bits as full_bits
