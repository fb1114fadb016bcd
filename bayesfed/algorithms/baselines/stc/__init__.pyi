from .recipe import stc as stc
from .server import TernaryStep as TernaryStep
