from .bayesian_lora import SketchedSvi as SketchedSvi
from .fed_stack_lora import Merge as Merge
from .fed_stack_lora import Merging as Merging
from .sketches import Sketched as Sketched
from .sketches import Slices as Slices
from .stacking import Refactored as Refactored
from .stacking import Stack as Stack
