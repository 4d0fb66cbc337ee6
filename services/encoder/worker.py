"""The encode role: vision tower, embedding arena, and nothing of the language model."""

from collections.abc import Mapping

from triptych.engine.encoder_loop import EncoderEngine
from triptych.errors import ConfigError
from triptych.journey import RequestId, Role
from triptych.models.loading import load_tower
from triptych.services.encoder.prepare import Preparer
from triptych.services.site import EMBEDDING_ARENA, RoleWorker, Site, die

ROWS_PER_UNIT = 16  # what one generation word guards: small items waste little, big ones need few words


class EncoderWorker(RoleWorker):
    """Owns the encoded rows until every claim on them has been released or has expired."""

    role = Role.ENCODE

    def __init__(self, site: Site) -> None:
        tower = load_tower(site.card, site.device, site.settings.serve.dtype)
        unit_bytes = ROWS_PER_UNIT * tower.levels * tower.width * site.dtype.itemsize
        num_units = site.settings.encoder.arena_bytes // unit_bytes
        if num_units < 1:
            raise ConfigError(
                f"encoder.arena_bytes is {site.settings.encoder.arena_bytes}, expected at least {unit_bytes}"
            )
        slab = site.add_slab("embedding", EMBEDDING_ARENA, unit_bytes, num_units)
        self.engine = EncoderEngine(
            tower=tower,
            slab=slab,
            prepare=Preparer(site.card),
            leases=site.leases,
            owner=site.owner,
            settings=site.settings.encoder,
            transfer=site.settings.transfer,
            on_fatal=die,
        )
        self.max_item_tokens = self.engine.max_item_tokens
        self.engine.start()

    def cancel(self, key: RequestId) -> None:
        self.engine.cancel(key)

    def gauges(self) -> Mapping[str, float]:
        return self.engine.snapshot()

    def idle(self) -> bool:
        return self.engine.idle()

    def check(self) -> None:
        self.engine.check()

    def stop(self) -> None:
        self.engine.stop()
