"""A digest of labeled image files that sees changed contents."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from protosphere.data.decoding import read_error
from protosphere.data.splits import DataError

# Files of more bytes than this in all are represented by their sizes and some blocks.
_MAX_HASHED_BYTES = 1 << 30
_BLOCK_BYTES = 1 << 12
_FILES_PER_TASK = 256
_THREADS = 8


def digest_files(
    paths: Sequence[str], labels: Sequence[int], class_names: Sequence[str], *, root: str
) -> str:
    """Hash contents, relative paths, labels and class names of image files, in their order.

    Args:
        paths: Path of each file.
        labels: Class index of each file.
        class_names: Name of each class.
        root: Folder whose location does not matter.

    Raises:
        DataError: A file cannot be read.
    """
    digest = hashlib.sha256(json.dumps([list(class_names), list(labels)]).encode())
    prefix = os.path.join(root, "")  # noqa: PTH118
    for path in paths:
        # File names are bytes and not always valid UTF-8. A null byte is in none of them.
        digest.update(os.fsencode(path.removeprefix(prefix).replace(os.sep, "/")) + b"\0")
    with ThreadPoolExecutor(_THREADS) as pool:
        chunks = [
            paths[start : start + _FILES_PER_TASK]
            for start in range(0, len(paths), _FILES_PER_TASK)
        ]
        sizes = pool.map(partial(_each, os.path.getsize), chunks)
        is_small = sum(map(sum, sizes)) <= _MAX_HASHED_BYTES
        for hashes in pool.map(partial(_each, _hash_file if is_small else _hash_blocks), chunks):
            digest.update(b"".join(hashes))
    return digest.hexdigest()


def _each(function: Callable[[str], Any], paths: Sequence[str]) -> list[Any]:
    """Call a function on each path, and name the file that cannot be read."""
    results = []
    for path in paths:
        try:
            results.append(function(path))
        except OSError as error:
            raise DataError(
                f"{path} must be an image file; it cannot be read ({read_error(error)})"
            ) from error
    return results


def _hash_file(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123
        return hashlib.file_digest(file, "sha256").digest()


def _hash_blocks(path: str) -> bytes:
    """Hash the size and a block at the start, in the middle and at the end of a file."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(str(size).encode())
        last = max(0, size - _BLOCK_BYTES)
        for offset in sorted({0, last // 2, last}):
            file.seek(offset)
            digest.update(file.read(_BLOCK_BYTES))
    return digest.digest()
