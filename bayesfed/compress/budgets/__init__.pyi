from .budgeted import Budgeted as Budgeted
from .budgeted import FlexibleMap as FlexibleMap
from .budgeted import Setting as Setting
from .budgeted import full_bits as full_bits
from .fitting import fit_flexible as fit_flexible
