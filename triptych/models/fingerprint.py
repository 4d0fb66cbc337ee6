"""What makes two processes' models the same: a digest of the model folder. No torch.

Small files (configs, tokenizer, processor, template) count with every byte, and so do small weights. Of large weights
count header, size and pages sampled evenly, so that a fine-tune is told apart without reading gigabytes.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3

from triptych.errors import ConfigError
from triptych.models.checkpoint import read_header, weights_files
from triptych.models.config_values import open_regular

FINGERPRINT_DOMAIN = b"triptych.model.v1"
SAMPLED_PAGES = 64
PAGE_BYTES = 4096
WHOLE_FILE_BYTES = 64 << 20

_SMALL_FILES = frozenset({".json", ".jinja", ".txt", ".model", ".tiktoken"})


def fingerprint(
    folder: Path, dtype: str, whole_file_bytes: int = WHOLE_FILE_BYTES, *, with_weights: bool = True
) -> bytes:
    """32 bytes that name the model in this folder as computed in this dtype, and whatever else is said behind it.

    The folder's own name and place do not count. Weights files above `whole_file_bytes` are sampled. Without weights
    it names the model whose weights are drawn at random.
    Raises ConfigError where a file cannot be read.
    """
    hasher = blake3()
    try:
        fields = _fields(folder, dtype, whole_file_bytes) if with_weights else _small_fields(folder, dtype)
        for field in fields:
            hasher.update(struct.pack("<Q", len(field)) + field)
    except OSError as error:
        raise ConfigError(f"cannot read {folder}: {error}") from error
    return bytes(hasher.digest())


def _small_fields(folder: Path, dtype: str) -> Iterator[bytes]:
    yield FINGERPRINT_DOMAIN
    yield dtype.encode()
    for file in sorted(folder.iterdir()):
        # Others than the card may read them later, and would wait for what is none.
        if file.suffix in _SMALL_FILES and file.exists() and not file.is_dir():
            yield file.name.encode()
            with open_regular(file) as stream:
                yield stream.read()


def _fields(folder: Path, dtype: str, whole_file_bytes: int) -> Iterator[bytes]:
    yield from _small_fields(folder, dtype)
    for file in weights_files(folder):
        yield file.name.encode()
        header = read_header(file).raw
        size = file.stat().st_size
        yield header
        yield struct.pack("<Q", size)
        if size <= whole_file_bytes:
            yield file.read_bytes()
        else:
            yield from _pages(file, len(header), size)


def _pages(file: Path, begin: int, size: int) -> Iterator[bytes]:
    """Pages sampled evenly over the data, which starts behind `begin`; the first and the last are among them."""
    last = max(begin, size - PAGE_BYTES)
    with file.open("rb") as stream:
        for page in range(SAMPLED_PAGES):
            stream.seek(begin + (last - begin) * page // (SAMPLED_PAGES - 1))
            yield stream.read(PAGE_BYTES)
