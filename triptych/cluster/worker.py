"""python -m triptych.cluster.worker --roles encode,prefill: any set of roles in this process, without Ray."""

from triptych.cluster.roles import BUILDERS
from triptych.services.command import run_worker

if __name__ == "__main__":
    run_worker(BUILDERS)
