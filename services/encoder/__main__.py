"""python -m triptych.services.encoder: one encoder worker in this process."""

from triptych.journey import Role
from triptych.services.command import run_worker
from triptych.services.encoder.service import build_encoder

if __name__ == "__main__":
    run_worker({Role.ENCODE: build_encoder})
