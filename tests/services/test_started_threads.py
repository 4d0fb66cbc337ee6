import threading

from triptych.services.started_threads import started_threads


def test_all_threads_are_there_before_the_first_work() -> None:
    pool = started_threads(3, "started-test")
    named = [thread for thread in threading.enumerate() if thread.name.startswith("started-test")]
    assert len(named) == 3
    assert pool.submit(lambda: 7).result(5.0) == 7
    pool.shutdown()
    assert not any(thread.is_alive() for thread in named)
