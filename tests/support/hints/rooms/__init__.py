"""Cases, a module or a folder for each room of the package: `tests.support.hints` says how."""
