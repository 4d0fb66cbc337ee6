"""Which builder makes which role: the one place where the tiers meet in one process."""

from collections.abc import Mapping

from triptych.journey import Role
from triptych.services.decode.service import build_decode
from triptych.services.encoder.service import build_encoder
from triptych.services.host import Builder
from triptych.services.prefill.service import build_prefill

BUILDERS: Mapping[Role, Builder] = {
    Role.ENCODE: build_encoder,
    Role.PREFILL: build_prefill,
    Role.DECODE: build_decode,
}
