from .comparison import comparison as comparison
from .folders import Folder as Folder
from .launch import run as run
from .result import Result as Result
from .scores import scoring as scoring
