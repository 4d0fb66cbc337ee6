"""Whether NIXL moves bytes here, as between workers of two hosts: one agent reads another's memory."""

import time

import numpy as np
import torch

from triptych.config import TransferSettings
from triptych.doctor.finding import Asked, Finding, fail, ok, warn
from triptych.doctor.versions import installed, requirements
from triptych.errors import TransferFailed
from triptych.transfer.mapping import poll_until
from triptych.transfer.nixl_agent import NixlAgent, Take
from triptych.transfer.nixl_start import make_agent
from triptych.transfer.slab import Slab, create_slab

_UNIT_BYTES = 4096
_NUM_UNITS = 16
_READ_SECONDS = 30.0  # the first read also makes the connection
_INSTALL = "pip install 'triptych[nixl]'; one host alone does without"


def look_nixl(asked: Asked) -> Finding:
    settings = asked.settings.transfer
    if "nixl" not in settings.transports:
        return ok(f"not asked for: transfer.transports names {', '.join(settings.transports)}")
    wanted = next(each for each in requirements("nixl") if each.name.startswith("nixl"))
    version = installed(wanted.name)
    if version is None:
        return warn(f"{wanted.name} is not installed: workers of two hosts cannot hand over", _INSTALL)
    if not wanted.admits(version):
        return warn(f"{wanted.name} is {version}, tried is {wanted.version}", _INSTALL)
    try:
        seconds = _read_back(settings)
    except TransferFailed as error:
        advice = (
            f"see transfer.nixl_interface ({settings.nixl_interface!r}) and transfer.nixl_tls ({settings.nixl_tls!r})"
        )
        return fail(f"{wanted.name} {version}: {error.message}", advice)
    return ok(f"{wanted.name} {version}: one agent has read another's memory, the first time in {seconds:.2f} s")


def _read_back(settings: TransferSettings) -> float:
    """Seconds that the read took. Raises TransferFailed where it fails, or brings other bytes."""
    owner, reader = make_agent(settings), make_agent(settings)
    slab = create_slab("embedding", 1, _UNIT_BYTES, _NUM_UNITS, torch.device("cpu"))
    slab.data.copy_(torch.arange(slab.data.numel()) % 251)
    began = time.monotonic()
    landed = _read(owner, reader, slab)
    if not torch.equal(landed, slab.data):
        raise TransferFailed("other bytes were read than were written")
    return time.monotonic() - began


def _read(owner: NixlAgent, reader: NixlAgent, slab: Slab) -> torch.Tensor:
    info = owner.describe(slab)
    assert info.nixl is not None, "an agent has described it"
    landing = torch.zeros(info.data_bytes, dtype=torch.uint8)
    reader.register(landing)
    reader.join(info.nixl)
    pieces = np.array([[info.data_offset, info.data_bytes]], dtype=np.int64)
    read = reader.read(info.nixl, [Take(pieces, landing)])
    poll_until(read.done, time.monotonic() + _READ_SECONDS, "a read between two agents of this process")
    reader.leave(info.nixl.agent)
    return landing[: slab.data.numel()]
