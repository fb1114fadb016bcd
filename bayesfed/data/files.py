"""Atomic writing of files: a temporary name, fsync, rename, fsync of the folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

from safetensors import SafetensorError

from bayesfed.errors import ArgumentError

# Suffix of a file that is still being written, or that a crash left behind.
PARTIAL = ".part"
# Modes of what only its owner may read.
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600


@contextlib.contextmanager
def writing(where: str, path: object) -> Iterator[None]:
    """Raise `ArgumentError` if what a block writes to a path that the user gave cannot be written
    there.
    """
    try:
        yield
    except (OSError, SafetensorError) as problem:
        actual, hint = f"{str(path)!r}: {problem}", "a path in a folder that can be written to"
        raise ArgumentError(where, "a path to write to", actual, hint) from problem


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for its owner alone (mode 0700), whatever
    the umask. A folder that is there keeps its mode.

    Raises
    ------
    OSError
        If it cannot be made.
    """
    for path in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=PRIVATE_FOLDER)
            # A umask takes bits away, also of the owner.
            path.chmod(PRIVATE_FOLDER)
    # A file of this name is an error.
    folder.mkdir(exist_ok=True)


def write_whole(path: Path, content: bytes | Iterable[bytes], *, private: bool = False) -> None:
    """Write a file atomically: after a crash at any moment the file is either the old one or the
    new one.

    Parameters
    ----------
    path
        Path of the file.
    content
        Content of the file, whole or in parts, which are written one after another.
    private
        Whether only the owner may read the file (mode 0600), whatever the umask: for what clients
        keep.

    Raises
    ------
    OSError
        If the file cannot be written; the old file is unchanged.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        mode = PRIVATE_FILE if private else 0o666
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            if private:
                os.fchmod(file, mode)
            for part in (content,) if isinstance(content, bytes) else content:
                pour(file, part)
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    sync(path.parent)


def append(path: Path, length: int, content: bytes) -> None:
    """Append to a file after its first `length` bytes; what follows them, from an interrupted call,
    is cut off.

    Raises
    ------
    OSError
        If the file cannot be written; its first `length` bytes are unchanged.
    """
    file = os.open(path, os.O_WRONLY)
    try:
        os.ftruncate(file, length)
        os.lseek(file, 0, os.SEEK_END)
        pour(file, content)
        os.fsync(file)
    finally:
        os.close(file)


def sync(folder: Path) -> None:
    """Wait until the entries of a folder are on disk."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def sweep(folder: Path) -> None:
    """Remove the temporary files of interrupted writes from a folder that no other process writes
    to.
    """
    for path in folder.glob(f".*{PARTIAL}"):
        path.unlink(missing_ok=True)


def digest(content: bytes) -> str:
    """Return the BLAKE2b digest of the content in hexadecimal."""
    return blake2b(content, digest_size=32).hexdigest()


def digest_of_file(path: Path, length: int | None = None) -> tuple[int, str]:
    """Return the length and the BLAKE2b digest of a file, or of as much of its beginning, which is
    never in memory as a whole.
    """
    hasher, read = blake2b(digest_size=32), 0
    with path.open("rb") as file:
        while part := file.read(1 << 20 if length is None else min(1 << 20, length - read)):
            hasher.update(part)
            read += len(part)
    return read, hasher.hexdigest()


def pour(file: int, content: bytes) -> None:
    """Write all of the content where the file stands."""
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]
