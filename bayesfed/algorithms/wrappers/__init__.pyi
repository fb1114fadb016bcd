from .accounting import epsilon as epsilon
from .on_devices import Planned as Planned
from .on_devices import Planner as Planner
from .on_devices import on_devices as on_devices
from .on_devices import planned_size as planned_size
from .phases import equal_weights as equal_weights
from .private import private as private
from .robust import robust as robust
