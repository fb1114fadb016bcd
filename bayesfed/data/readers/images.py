"""Images of your own, in one folder for each class, read with Pillow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from bayesfed.data.dataset import Dataset
from bayesfed.data.rows import as_inputs, check_mode, labelled, numbers_of
from bayesfed.errors import DataError, LocalText, needs
from bayesfed.errors.checks import Role, checked

if TYPE_CHECKING:
    from PIL.Image import Image


@checked(
    size=Role(
        lambda size: len(size) == 2 and min(size) >= 1, "rows and columns, at least 1", "(32, 32)"
    )
)
def from_image_folder(
    folder: str | Path,
    *,
    size: tuple[int, int] | None = None,
    colour: Literal["rgb", "grey"] = "rgb",
    classes: Sequence[str] | None = None,
) -> Dataset:
    """Read images ``folder/CLASS/picture.png``: inputs in [0, 1], ``(N, 3, rows, columns)``, or
    ``(N, rows, columns)`` in grey.

    Rows are ordered by class and file name. The rotation in EXIF data is applied, and transparency
    is dropped. Files whose names begin with a dot, and files of unknown suffix beside the folders
    of the classes, are ignored.

    Parameters
    ----------
    folder
        The folder that holds a folder for each class.
    size
        Rows and columns to resize every image to, regardless of its shape. None: all images must
        have one size.
    colour
        "rgb" or "grey".
    classes
        Names of the classes in the order of their numbers, such as ``.classes`` of the training set
        for its test set. None: the names of the folders, integers by value and texts
        alphabetically.

    Raises
    ------
    MissingExtraError
        If Pillow is not installed.
    ArgumentError
        If `size` or `colour` is not valid.
    DataError
        If there are no classes, a class is empty or not in `classes`, an image is outside the
        folders of the classes, a file is not an image or has more than 8 bits per colour, or sizes
        differ; the message names the file.
    """
    folder = Path(folder)
    known = needs("PIL.Image", "images", "Pillow").registered_extensions()
    files = list(_files(folder, set(known)))
    homes = [path.relative_to(folder).parts[0] for path in files]

    def at(row: int) -> str:
        return LocalText(files[row])

    pictures = (_picture(path, size, colour) for path in files)
    return labelled(as_inputs(pictures, None, at), homes, classes, at)


def _files(folder: Path, suffixes: set[str]) -> Iterator[Path]:
    """Yield the image files of all classes in order of their names."""
    if not folder.is_dir():
        raise DataError(LocalText(folder), "a folder", "none", "checking the path")
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    if loose := [path for path in inside if path.is_file() and path.suffix.lower() in suffixes]:
        raise DataError(
            LocalText(loose[0]),
            "pictures in a folder that names their class",
            "no such folder",
            "CLASS/a.png",
        )
    homes = [path for path in inside if path.is_dir()]
    if not homes:
        raise DataError(
            LocalText(folder), "a folder for each class", "none", "the folder above or below"
        )
    for home in homes:
        files = sorted(
            path for path in home.rglob("*") if path.is_file() and not path.name.startswith(".")
        )
        if not files:
            raise DataError(LocalText(home), "at least one picture", "none", "removing the folder")
        yield from files


def _picture(path: Path, size: tuple[int, int] | None, colour: str) -> np.ndarray:
    """Read one image as an array of bytes."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(path) as opened:
            check_mode(opened, LocalText(path))
            picture: Image.Image = ImageOps.exif_transpose(opened).convert(
                "RGB" if colour == "rgb" else "L"
            )
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError, SyntaxError) as problem:
        raise DataError(
            LocalText(path), "a picture", problem, "moving the file elsewhere"
        ) from problem
    if size is not None:
        picture = picture.resize((size[1], size[0]))
    return numbers_of(picture, LocalText(path))
