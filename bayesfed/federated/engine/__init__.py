"""The round loop, and everything around it that only the server sees.

In the order of their imports: `reports` (what a run yields), `samplers`,
`settings` (what a run is continued with), `gate` (checks on answers), `entries` and `exchange` (one
phase of a round), `round_loop` (`rounds`), `callbacks`, and `files` and `checkpoint` (runs on
disk).
"""
