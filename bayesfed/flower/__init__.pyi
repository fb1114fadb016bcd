from .experiment import Experiment as Experiment
from .pool import Flower as Flower
from .site import Site as Site
from .starting import new_app as new_app
