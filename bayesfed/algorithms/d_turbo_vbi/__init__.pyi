from .changes import Changes as Changes
from .density import ToDensity as ToDensity
from .density import no_field as no_field
from .density import ramp as ramp
from .recipe import d_turbo_vbi as d_turbo_vbi
from .returns import Returns as Returns
from .server import TurboStep as TurboStep
