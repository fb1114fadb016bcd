"""The pictures of README and of the documentation; each module has ``draw``, and ``measure`` where its record is made by the same program."""
