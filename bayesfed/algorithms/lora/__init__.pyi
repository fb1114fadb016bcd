from .fed_stack_lora import Merge as Merge
from .fed_stack_lora import Merging as Merging
from .sketch_view import Slices as Slices
from .sketched import Sketched as Sketched
from .sketched_svi import SketchedSvi as SketchedSvi
from .stacking import Refactored as Refactored
from .stacking import Stack as Stack
