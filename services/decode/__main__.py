"""python -m triptych.services.decode: one decode worker in this process."""

from triptych.journey import Role
from triptych.services.command import run_worker
from triptych.services.decode.service import build_decode

if __name__ == "__main__":
    run_worker({Role.DECODE: build_decode})
