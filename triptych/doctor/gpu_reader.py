"""python -m triptych.doctor.gpu_reader JSON: the neighbour that opens a GPU's memory and reads it."""

import json
import sys
import time
from collections.abc import Mapping

import torch

from triptych.doctor.gpu_sharing import NUM_BYTES
from triptych.errors import TransferFailed
from triptych.transfer.cuda_events import has_completed, new_stream, open_event
from triptych.transfer.cuda_runtime import device_by_uuid, open_memory
from triptych.transfer.mapping import poll_until

_EVENT_SECONDS = 20.0


def read(where: Mapping[str, str]) -> None:
    """Raises TransferFailed with the reason why this process cannot read it, or reads something else."""
    device = device_by_uuid(where["device"])
    if device is None:
        raise TransferFailed(f"it does not see GPU {where['device']}")
    memory = open_memory(device, bytes.fromhex(where["memory"]), NUM_BYTES)
    event = open_event(device, bytes.fromhex(where["event"]))
    poll_until(lambda: has_completed(event), time.monotonic() + _EVENT_SECONDS, "the owner's event")
    with torch.cuda.stream(new_stream(device)):
        found = memory.tensor().view(torch.int64).cpu()
    if not torch.equal(found, torch.arange(NUM_BYTES // 8)):
        raise TransferFailed("it reads other bytes than were written")


if __name__ == "__main__":
    try:
        read(json.loads(sys.argv[1]))
    except (TransferFailed, RuntimeError) as error:
        print(f"{error}".splitlines()[0])
        sys.exit(1)
