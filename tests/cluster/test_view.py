"""What is told of workers."""

from triptych.cluster.reconcile import State
from triptych.cluster.view import View, WorkerView


def test_routers_are_told_how_far_workers_are_that_they_may_not_have_met() -> None:
    workers = (
        WorkerView("ep-0", "ep", State.STARTING, "loads the language model, for 12 s"),
        WorkerView("decode-0", "decode", State.READY),
        WorkerView("decode-1", "decode", State.DRAINING),
    )
    view = View("ep+d", {"ep": 2, "decode": 1}, workers, failures={"ep-1": "no such folder"})
    assert {each["worker_id"]: (each["roles"], each["note"]) for each in view.coming()} == {
        "ep-0": (["encode", "prefill"], "starting: loads the language model, for 12 s"),
        "ep-1": (["encode", "prefill"], "down: no such folder"),
        "decode-0": (["decode"], "has loaded; requests come once all others have, too"),
    }
