from bayesfed._names import *
from bayesfed.algorithms import *

__version__: str
