"""Whether a second set of workers fits beside the first."""

import pytest

from triptych.cluster.room import available_bytes, require_room_beside
from triptych.config import MIB, LanguageSettings, ServeSettings, Settings
from triptych.config.host_memory import WORKER_BYTES
from triptych.errors import InvalidRequest

COUNTS = {"encode": 1, "pd": 2}
SETTINGS = Settings(serve=ServeSettings(topology="e+pd"), language=LanguageSettings(swap_bytes=0))
ON_GPU = 3 * WORKER_BYTES  # what is not on the GPU


def test_workers_on_gpus_need_as_many_gpus_again() -> None:
    gpus = {"encode": 0.1, "pd": 0.2}
    require_room_beside(SETTINGS, gpus, COUNTS, free_gpus=0.5, free_bytes=ON_GPU)
    with pytest.raises(InvalidRequest, match=r"asks for 0.5 GPUs \(1 x 0.1 for encode, 2 x 0.2 for pd\), and 0.49 are"):
        require_room_beside(SETTINGS, gpus, COUNTS, free_gpus=0.49, free_bytes=ON_GPU)
    with pytest.raises(InvalidRequest, match=r"takes up to 2.5 GiB of memory besides weights"):
        require_room_beside(SETTINGS, gpus, COUNTS, free_gpus=1.0, free_bytes=ON_GPU - 1)


def test_workers_on_the_cpu_have_kv_and_rows_there_as_well() -> None:
    needed = ON_GPU + 256 * MIB + 2 * (512 + 256) * MIB  # encoded rows; KV and landing rows
    require_room_beside(SETTINGS, {}, COUNTS, free_gpus=0.0, free_bytes=needed)
    with pytest.raises(InvalidRequest, match=r"lower language.kv_bytes, language.swap_bytes or encoder.arena_bytes"):
        require_room_beside(SETTINGS, {}, COUNTS, free_gpus=0.0, free_bytes=needed - 1)


def test_this_machine_has_memory() -> None:
    assert available_bytes() > 0
