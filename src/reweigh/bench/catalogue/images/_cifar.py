"""The official CIFAR files: pickles written by Python 2, read without letting them run anything."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reweigh.bench.catalogue import archive
from reweigh.bench.catalogue.card import Array
from reweigh.bench.errors import MissingFileError, UserError


def find(root: Path, folder: str, tarball: str, names: Sequence[str]) -> dict[str, Path]:
    """The files of the unpacked folder, or the official tarball itself."""
    if (root / folder).is_dir():
        missing = [name for name in names if not (root / folder / name).is_file()]
        if missing:
            raise MissingFileError(f"{root / folder} has no {missing[0]}. Unpack the official archive again.")
        return {name: root / folder / name for name in names}
    return {tarball: root / tarball} if (root / tarball).is_file() else {}


def read(files: Mapping[str, Path], folder: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """The dictionaries in the files of these names, whether unpacked or in the tarball."""
    if len(files) == 1:
        (tarball,) = files.values()
        contents = archive.read(tarball, {name: f"{folder}/{name}" for name in names})
    else:
        contents = {name: path.read_bytes() for name, path in files.items()}
    return [loads(contents[name], name) for name in names]


def images(rows: Array) -> Array:
    """Rows of 3072 bytes (all red, all green, all blue) as images in NHWC order."""
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), dtype=np.uint8)


def loads(content: bytes, what: str) -> dict[str, Any]:
    """A pickled dictionary of arrays, lists, numbers and strings; anything else is refused before it is made."""
    try:
        value = _Restricted(io.BytesIO(content), encoding="bytes").load()
    except (EOFError, ValueError, IndexError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{what}: not a whole pickle ({error}). Download the official file again.") from error
    if not isinstance(value, dict):
        raise UserError(f"{what}: expected a dictionary, got {type(value).__name__}.")
    # Python 2's strings arrive as bytes; the keys are ASCII.
    return {_text(key): item for key, item in value.items()}


def texts(values: Sequence[Any]) -> tuple[str, ...]:
    """Class names, whichever Python wrote them."""
    return tuple(_text(value) for value in values)


def _text(value: Any) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else str(value)


def _latin1(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes in the old protocol; with this encoding only."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"refused to encode text as {encoding!r}")
    return text.encode("latin1")


#: What a pickle may name: the pieces of a NumPy array. The functions are taken from NumPy's own reductions, because
#: the module they live in has moved over the years.
_RECONSTRUCT = np.zeros(0).__reduce__()[0]
_SCALAR = np.float64(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy.core.multiarray", "scalar"): _SCALAR,
    ("numpy._core.multiarray", "scalar"): _SCALAR,
    ("_codecs", "encode"): _latin1,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in _ALLOWED:
            raise pickle.UnpicklingError(
                f"refused to load {module_name}.{global_name}: a CIFAR file holds only NumPy arrays, lists and text. "
                "This one is not the official file; do not trust it."
            )
        return _ALLOWED[module_name, global_name]
