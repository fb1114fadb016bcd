"""Files that are there whole or not at all: temporary name, fsync, rename, fsync of the folder."""

from __future__ import annotations

import contextlib
import os
from hashlib import blake2b
from pathlib import Path

# How a file that is still being written ends; one that a crash left behind is nobody's.
PARTIAL = ".part"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file at once; a crash half way, whatever its moment, leaves what was there before.

    Raises
    ------
    OSError
        If it cannot be written; what was there before still is.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            _pour(file, content)
        finally:
            os.close(file)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    sync(path.parent)


def append(path: Path, length: int, content: bytes) -> None:
    """Add to a file behind its first `length` bytes, whatever an interrupted call left there.

    Raises
    ------
    OSError
        If it cannot be written; the first `length` bytes are as they were.
    """
    file = os.open(path, os.O_WRONLY)
    try:
        os.ftruncate(file, length)
        os.lseek(file, 0, os.SEEK_END)
        _pour(file, content)
    finally:
        os.close(file)


def sync(folder: Path) -> None:
    """Wait until the disk has a folder's names."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def sweep(folder: Path) -> None:
    """Remove what interrupted writes left in a folder that nobody else writes to."""
    for path in folder.glob(f".*{PARTIAL}"):
        path.unlink(missing_ok=True)


def digest(content: bytes) -> str:
    """Return the BLAKE2b digest in hexadecimal."""
    return blake2b(content, digest_size=32).hexdigest()


def _pour(file: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]
    os.fsync(file)
