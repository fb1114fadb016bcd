"""On which line of a TOML text a key stands: `tomllib` does not say, and an error message should."""

from __future__ import annotations

import re

Path = tuple[str | int, ...]

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'', re.DOTALL)
_SCALAR = re.compile(r"[^,\]}\n#]*")


def key_lines(text: str) -> dict[Path, int]:
    """Return the line, from 1, of every key and every entry of an array, by its path. The text must be one that `tomllib` reads."""
    scan = _Scan(text)
    scan.document()
    return scan.lines


class _Scan:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.lines = text, 0, dict[Path, int]()
        self._counts: dict[Path, int] = {}

    def document(self) -> None:
        base: Path = ()
        self._skip()
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                base = self._header()
            else:
                self._pair(base)
            self._skip()

    def _skip(self) -> None:
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def _note(self, path: Path, at: int) -> None:
        self.lines.setdefault(path, self.text.count("\n", 0, at) + 1)

    def _header(self) -> Path:
        start, several = self.at, self.text.startswith("[[", self.at)
        self.at += 2 if several else 1
        path: Path = ()
        parts = self._dotted()
        for place, part in enumerate(parts):
            path = (*path, part)
            self._note(path, start)
            if several and place == len(parts) - 1:
                self._counts[path] = self._counts.get(path, 0) + 1
            if path in self._counts:
                path = (*path, self._counts[path] - 1)
                self._note(path, start)
        self.at = self.text.index("]", self.at) + (2 if several else 1)
        return path

    def _dotted(self) -> list[str]:
        parts = [self._key()]
        self._skip()
        while self.text.startswith(".", self.at):
            self.at += 1
            parts.append(self._key())
            self._skip()
        return parts

    def _key(self) -> str:
        self._skip()
        found = _BARE.match(self.text, self.at) or _STRING.match(self.text, self.at)
        if found is None:
            raise ValueError(f"no key at {self.at}")
        self.at = found.end()
        return found.group().strip("\"'")

    def _pair(self, base: Path) -> None:
        self._skip()
        start, path = self.at, base
        for part in self._dotted():
            path = (*path, part)
            self._note(path, start)
        self.at = self.text.index("=", self.at) + 1
        self._value(path)

    def _value(self, path: Path) -> None:
        self._skip()
        if self.text.startswith("[", self.at):
            self._entries(path, "]")
        elif self.text.startswith("{", self.at):
            self._entries(path, "}")
        else:
            found = _STRING.match(self.text, self.at) or _SCALAR.match(self.text, self.at)
            self.at = found.end() if found else self.at

    def _entries(self, path: Path, end: str) -> None:
        self.at += 1
        number = 0
        self._skip()
        while not self.text.startswith(end, self.at):
            if end == "]":
                self._note((*path, number), self.at)
                self._value((*path, number))
            else:
                self._pair(path)
            number += 1
            self._skip()
            if self.text.startswith(",", self.at):
                self.at += 1
                self._skip()
        self.at += 1
