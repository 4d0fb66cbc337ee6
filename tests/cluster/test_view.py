"""What is told of workers."""

from triptych.cluster.reconcile import State
from triptych.cluster.view import View, WorkerView, of_missing


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


def test_a_failure_is_told_of_until_its_worker_is_there_or_is_not_wanted_any_more() -> None:
    failures = {"decode-0": "killed", "decode-1": "killed", "encode-0.2": "killed"}
    starting = [WorkerView("decode-0", "decode", State.STARTING)]
    wanted = {"encode": 1, "decode": 2}
    assert of_missing(failures, starting, wanted, {1, 2}) == failures
    assert of_missing(failures, starting, wanted, {1}) == {"decode-0": "killed", "decode-1": "killed"}
    scaled_down = of_missing(failures, starting, wanted | {"decode": 1}, {1})
    assert scaled_down == {"decode-0": "killed"}, "nobody waits for decode-1"
    draining = [WorkerView("decode-0", "decode", State.DRAINING)]
    assert of_missing({"decode-1": "killed"}, draining, wanted, {1}) == {"decode-1": "killed"}
