"""The command line as ``python -m bayesfed``, where the command `bayesfed` is not on the path."""

from __future__ import annotations

import sys

from bayesfed.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
