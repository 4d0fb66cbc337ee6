"""What the tests of the services share."""

from collections.abc import Iterator

import pytest

from triptych.cluster.roles import BUILDERS
from triptych.config import EncoderSettings, LanguageSettings, ServeSettings, Settings
from triptych.journey import Endpoint, Role
from triptych.services.host import Placement, WorkerHost

SECRET = "0123456789abcdef" * 2


@pytest.fixture(scope="session")
def worker() -> Iterator[Endpoint]:
    """A real one that has every role, of the cluster with SECRET."""
    settings = Settings(
        serve=ServeSettings(device="cpu", cluster_secret=SECRET, cpu_threads=1),
        encoder=EncoderSettings(arena_bytes=8 << 20, decode_isolation="threads"),
        language=LanguageSettings(kv_bytes=8 << 20, landing_bytes=8 << 20, swap_bytes=0),
    )
    host = WorkerHost(Placement("w", frozenset(Role), device="cpu"), BUILDERS, settings)
    yield host.start()
    host.stop()
