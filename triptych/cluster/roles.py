"""Which builder makes which role: the one place where the tiers meet in one process.

A tier is imported when a worker has its role, by name: what only a vision tower needs takes seconds to import.
"""

import importlib
from collections.abc import Mapping
from typing import cast

import grpc

from triptych.journey import Role
from triptych.services.host import Builder
from triptych.services.site import Language, RoleWorker, Site


def _of(tier: str) -> Builder:
    def build(site: Site, language: Language | None, server: grpc.aio.Server) -> RoleWorker:
        module = importlib.import_module(f"triptych.services.{tier}.service")
        return cast(Builder, getattr(module, f"build_{tier}"))(site, language, server)

    return build


BUILDERS: Mapping[Role, Builder] = {
    Role.ENCODE: _of("encoder"),
    Role.PREFILL: _of("prefill"),
    Role.DECODE: _of("decode"),
}
