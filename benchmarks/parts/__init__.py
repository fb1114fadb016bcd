"""What the programs of `benchmarks/` are made of, a folder for each, named like it; `shared` and
`peers` are for several of them.

A folder's ``settings.toml`` has the cases of its program. Modules with ``targets(options)`` are
parts that `--only` names: each measures, prints, and yields whether each of its targets is met
(`shared/parts.py`).

Importing it puts the root of the repository on the path, for `tests.support` and `examples`.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
