"""Files that are written whole or not at all; arrays and settings in one npz file, read without pickle."""

import contextlib
import glob
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

_SETTINGS = "settings"
_SECONDS_OF_A_WRITER = 3600.0  # a part that nobody has touched for so long belongs to a killed process


def write_whole(path: str | Path, write: Callable[[IO[bytes]], None]) -> None:
    """Write a part beside the file, then rename it: whatever happens, the name holds the old file or the new one.

    :raises OSError: if it cannot be written; a file of that name stays as it was.
    """
    path = Path(path).resolve()  # a link stays, and the file that it leads to is replaced
    # Each writer has a part of its own: one that two share would be renamed half written.
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    _remove_parts_of_killed_writers(path)
    try:
        with part.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise OSError(error.errno, f"{path} could not be written ({error.strerror}); what it held stays") from error
    finally:
        part.unlink(missing_ok=True)


def _remove_parts_of_killed_writers(path: Path) -> None:
    for part in path.parent.glob(f"{glob.escape(path.name)}.{'[0-9a-f]' * 8}.part"):
        with contextlib.suppress(OSError):  # another writer was faster
            if time.time() - part.stat().st_mtime > _SECONDS_OF_A_WRITER:
                part.unlink()


def write_arrays(path: str | Path, arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> None:
    """Write an npz file that :func:`read_arrays` reads.

    :raises OSError: if it cannot be written; a file of that name stays as it was.
    """
    whole = {_SETTINGS: np.array(json.dumps(settings)), **arrays}
    write_whole(path, lambda file: np.savez(file, **whole))  # type: ignore[arg-type]


def read_arrays(path: str | Path, required: Iterable[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the settings of a file that :func:`write_arrays` wrote.

    :raises ValueError: if it is not such a file, or lacks a required array.
    """
    what = "a file that numpyro_ndpp saved"
    arrays = read_npz(path, what, lambda file: {name: file[name] for name in file})
    missing = [name for name in (_SETTINGS, *required) if name not in arrays]
    if missing:
        raise ValueError(f"{path} is not {what}: it has no {missing[0]!r}")
    try:
        return arrays, json.loads(str(arrays.pop(_SETTINGS)))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not {what}: {error}") from error


def read_npz(path: str | Path, what: str, read: Callable[[Any], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """What ``read`` takes out of an npz file, without pickle.

    :raises ValueError: if the file is damaged or is no npz file; the message says that it is not ``what``.
    """
    # Opened here: NumPy would leave a file open that turns out not to be one of its own.
    with Path(path).open("rb") as opened:
        try:
            with np.load(opened, allow_pickle=False) as file:
                return read(file)
        except MemoryError as error:  # a wrong byte may ask for any amount of memory
            raise ValueError(f"{path} is not {what}, or there is too little memory to read it: {error}") from error
        # Which of a dozen errors it is depends on the byte that is wrong.
        except Exception as error:
            raise ValueError(f"{path} is not {what}: {error}") from error


def fingerprint(*arrays: np.ndarray) -> str:
    """A short text, which is another one for other arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.shape}{array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
