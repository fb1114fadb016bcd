"""Messages that no call can reach: by file, a part of their source, and the reason."""

from collections.abc import Mapping

UNREACHABLE: Mapping[str, Mapping[str, str]] = {}
