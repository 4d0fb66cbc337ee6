"""python -m tests.tiny_vl.spoilt_worker: as triptych.cluster.worker, with the fault that the switch file names.

The file's path is in the environment variable SPOILT_WORKER_SWITCH.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import grpc

from tests.tiny_vl.spoil import SpoiltEngine, SpoiltTower, Switch
from triptych.engine.loop import LanguageEngine
from triptych.journey import Role
from triptych.services.command import run_worker
from triptych.services.decode.service import build_decode
from triptych.services.encoder import worker as encoder_worker
from triptych.services.encoder.service import build_encoder
from triptych.services.host import Builder
from triptych.services.prefill.service import build_prefill
from triptych.services.site import Language, RoleWorker, Site

SWITCH_VARIABLE = "SPOILT_WORKER_SWITCH"


def builders(switch: Switch) -> Mapping[Role, Builder]:
    """Builders of roles whose engine or tower obeys the switch."""

    def with_engine(build: Builder) -> Builder:
        def built(site: Site, language: Language | None, server: grpc.aio.Server) -> RoleWorker:
            if language is not None:
                language.engine = cast(LanguageEngine, SpoiltEngine(language.engine, switch))
            return build(site, language, server)

        return built

    load_tower = encoder_worker.load_tower  # type: ignore[attr-defined]  # imported there, from the models

    def load_spoilt(*arguments: Any) -> SpoiltTower:
        return SpoiltTower(load_tower(*arguments), switch)

    encoder_worker.load_tower = load_spoilt  # type: ignore[assignment,attr-defined]
    return {
        Role.ENCODE: build_encoder,
        Role.PREFILL: with_engine(build_prefill),
        Role.DECODE: with_engine(build_decode),
    }


if __name__ == "__main__":
    run_worker(builders(Switch(Path(os.environ[SWITCH_VARIABLE]))))
