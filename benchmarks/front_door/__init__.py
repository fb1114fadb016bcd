"""The parts of `front.py`: figures and where they come from, what README and the pages hold."""
