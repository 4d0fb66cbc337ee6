"""Model folders that tests serve: the embedded one, and random ones made once per machine and version of the maker."""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import tokenizers
import transformers

from tools import folder_parts, make_random_checkpoint

EMBEDDED = Path(__file__).resolve().parent.parent / "triptych/models/tiny_vl"


def random_checkpoint(seed: int = 0) -> Path:
    """The folder of the random checkpoint of this seed; made on first use, shared by all tests: do not write to it."""
    source = b"".join(Path(str(each.__file__)).read_bytes() for each in (make_random_checkpoint, folder_parts))
    versions = f"{tokenizers.__version__} {transformers.__version__}".encode()
    key = hashlib.sha256(source + versions).hexdigest()[:16]
    shelf = Path(tempfile.gettempdir()) / f"triptych-checkpoints-{os.getuid()}"
    folder = shelf / f"{key}-seed{seed}"
    if not folder.is_dir():
        shelf.mkdir(mode=0o700, exist_ok=True)
        # Made aside and renamed: another test process may be making the same one.
        made = Path(tempfile.mkdtemp(dir=shelf))
        make_random_checkpoint.make_checkpoint(made, seed)
        try:
            made.rename(folder)
        except OSError:
            shutil.rmtree(made)
    return folder


_WITHOUT = ("model.layers.3.mlp.down_proj.weight", "visual.blocks.2.mlp.down_proj.weight")


def other_weights(folder: Path) -> Path:
    """The folder, filled: the embedded model with other weights in tower and language model, all else the same."""
    folder.mkdir()
    for file in EMBEDDED.iterdir():
        if file.suffix != ".safetensors" and file.name != "self_test.json":
            shutil.copy(file, folder)
    for file in EMBEDDED.glob("*.safetensors"):
        data = bytearray(file.read_bytes())
        begin = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:begin]).items():
            if name in _WITHOUT:
                first, end = (begin + offset for offset in entry["data_offsets"])
                data[first:end] = bytes(end - first)
        (folder / file.name).write_bytes(data)
    return folder
