"""What a reload is asked, and what it shows, without a server."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.checkpoints import EMBEDDED
from triptych.cluster.agreement import differences, same_first_model
from triptych.cluster.reconcile import State
from triptych.cluster.reload_command import is_done, lines, require_wanted, wanted, whole
from triptych.cluster.reloading import is_to_come, named, read_model
from triptych.cluster.sets import Phase
from triptych.cluster.view import SetView, View, WorkerView
from triptych.config import ServeSettings, Settings
from triptych.errors import ClusterError, InvalidRequest


def settings(**serve: object) -> Settings:
    return Settings(serve=ServeSettings(**serve))  # type: ignore[arg-type]


def test_a_model_is_a_folder_here_by_its_whole_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, fingerprint = read_model(str(EMBEDDED), settings())
    assert (model, read_model("tiny-vl", settings())) == (str(EMBEDDED), ("tiny-vl", fingerprint))
    (tmp_path / "link").symlink_to(EMBEDDED)
    assert read_model(str(tmp_path / "link"), settings())[0] == str(EMBEDDED), "where the link leads may change"
    monkeypatch.chdir(EMBEDDED.parent)
    with pytest.raises(InvalidRequest, match="'tiny_vl' is no folder on the server's machine, by its whole path"):
        read_model("tiny_vl", settings())
    assert whole("tiny_vl") == str(EMBEDDED), "which the command makes of it"
    assert whole("some/model") == "some/model"


def test_what_is_served_already_does_not_come_again_and_files_put_over_it_are_refused() -> None:
    sets = (SetView(1, "/a", Phase.FINISHING), SetView(2, "/b", Phase.SERVING), SetView(3, "/c", Phase.LEAVING))
    told = [None, {"sets": [{"set": 1, "fingerprint": "aa"}, {"set": 2, "fingerprint": "bb"}]}]
    assert not is_to_come("/b", "bb", sets, told)
    assert all(is_to_come(*each, sets, told) for each in (("/a", "aa"), ("/c", "cc"), ("/d", "bb")))
    for model in ("/a", "/b"):
        with pytest.raises(InvalidRequest, match=f"{model} is where set . was loaded from, and has other files now"):
            is_to_come(model, "xx", sets, told)


def test_what_serves_only_until_another_has_come_is_asked_for_again() -> None:
    sets = (SetView(1, "/a", Phase.SERVING), SetView(2, "/b", Phase.COMING))
    assert is_to_come("/a", "aa", sets, []), "so that it is said that another comes"
    assert not is_to_come("/b", "bb", sets, [])


def test_the_name_that_clients_use_is_that_of_the_first_model() -> None:
    assert named(settings(model="/models/shop")).serve.served_name == "shop"
    assert named(settings(model="/models/shop", served_name="mine")).serve.served_name == "mine"


def test_a_server_with_the_first_model_or_the_present_one_takes_the_cluster_over() -> None:
    running, other = settings(model="/a"), settings(model="/c")
    for each in (running, settings(model="/b")):
        assert differences(*same_first_model(running, each, "/b")) == ()
    assert differences(*same_first_model(running, other, "/b")) == ("serve.model is '/b' there and '/c' here",)


VIEW = View(
    topology="e+pd",
    counts={"encode": 1, "pd": 1},
    workers=tuple(
        WorkerView(name, name.partition("-")[0], state)
        for name, state in (("encode-0", State.READY), ("pd-0", State.READY), ("encode-0.2", State.STARTING))
    ),
    sets=(SetView(1, "/a", Phase.SERVING), SetView(2, "/b", Phase.COMING)),
)


def test_what_is_shown_are_the_sets_and_how_far_they_are() -> None:
    told = VIEW.told()
    assert lines(told) == ["set 1 serving, encode 1 of 1, pd 1 of 1: /a", "set 2 coming, encode 0 of 1, pd 0 of 1: /b"]
    assert not is_done(told)
    assert not told["settled"]
    kept = (SetView(1, "/b", Phase.FINISHING, requests=3, kept_seconds=60.0), SetView(2, "/a", Phase.SERVING))
    shifted = replace(VIEW, sets=kept)
    assert lines(shifted.told())[0] == "set 1 finishing, encode 1 of 1, pd 1 of 1: /b, 3 requests, kept for 60 s"
    assert not is_done(shifted.told())


def test_who_waits_for_a_set_hears_that_another_operator_has_taken_it_back() -> None:
    assert wanted(VIEW.told()) == 2
    require_wanted(VIEW.told(), 2)
    taken_back = replace(VIEW, sets=(VIEW.sets[0], SetView(2, "/b", Phase.LEAVING)))
    assert wanted(taken_back.told()) == 1
    for told in (taken_back.told(), replace(VIEW, sets=VIEW.sets[:1]).told()):
        with pytest.raises(ClusterError, match="set 2 does not serve: somebody has asked for another since"):
            require_wanted(told, 2)
    failed = replace(VIEW, sets=VIEW.sets[:1], trouble="set 2 with /b was given up: it is broken")
    with pytest.raises(ClusterError, match="set 2 with /b was given up: it is broken"):
        require_wanted(failed.told(), 2)
    require_wanted(failed.told(), 1)  # for whom what came to nothing before is no trouble


def test_it_is_done_once_one_set_serves_and_no_other_has_requests() -> None:
    ready = replace(VIEW, workers=(*VIEW.workers[:2], WorkerView("encode-0.2", "encode", State.READY)))
    ready = replace(ready, workers=(*ready.workers, WorkerView("pd-0.2", "pd", State.READY)))
    for requests, kept_seconds, done in ((0, 60.0, True), (1, 60.0, False), (0, 0.0, False)):
        before = SetView(1, "/a", Phase.FINISHING, requests, kept_seconds)
        told = replace(ready, sets=(before, SetView(2, "/b", Phase.SERVING))).told()
        assert is_done(told) is done
    given_up = replace(VIEW, workers=VIEW.workers[:2], sets=VIEW.sets[:1], trouble="set 2 was given up")
    assert lines(given_up.told())[-1] == "set 2 was given up"
