"""python -m triptych.services.prefill: one prefill worker in this process."""

from triptych.journey import Role
from triptych.services.command import run_worker
from triptych.services.prefill.service import build_prefill

if __name__ == "__main__":
    run_worker({Role.PREFILL: build_prefill})
