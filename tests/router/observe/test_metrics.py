"""What a server tells of itself over HTTP: every metric, no more series than before, classes of service, discovery."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.checkpoints import EMBEDDED
from tests.metrics.test_books import EVERY, samples
from tests.router.origin import Visit, origin, response
from tests.router.serving import PICTURES, Served, image, picture, serving, tiers, until
from triptych.cluster.roles import BUILDERS
from triptych.config import EncoderSettings, LanguageSettings, ServeSettings, ServiceClass, Settings, SLOSettings
from triptych.errors import InvalidMedia, WorkerLost
from triptych.journey import Role
from triptych.metrics import WORKER_GAUGES
from triptych.models.card import ModelCard
from triptych.router.api.completions.form import CompletionForm
from triptych.router.edge.auth import Key, digest_of, toml_of
from triptych.router.fleet.link import KnownWorker
from triptych.services.host import Placement, WorkerHost
from triptych.stages import TIMED_STAGES

pytestmark = pytest.mark.anyio

LEVELS = SLOSettings(
    "easy",
    (
        ServiceClass("easy", ttft_seconds=60.0, tpot_seconds=60.0, e2e_seconds=60.0, target=0.5),
        ServiceClass("strict", ttft_seconds=1e-6, target=0.9),
    ),
)
# Where there is no GPU.
OF_GPUS = {"triptych:device_bytes"}
# What a request is timed by, from the socket to its last token; the rest is what these leave, or is seldom asked for.
MEASURED = [stage.name for stage in TIMED_STAGES if stage.name not in ("grammar", "turn", "wire", "router", "respond")]
STATUSES = ("encoded", "cached", "failed")
# Names of samples that a histogram has, by which it is told that something was observed.
OBSERVED = "_count"


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[KnownWorker]]:
    """Two real ones of the embedded model, so that rows are handed over by shared memory, and what they are."""
    settings = Settings(
        serve=ServeSettings(model=str(EMBEDDED), dtype="float32", device="cpu", cpu_threads=1),
        encoder=EncoderSettings(arena_bytes=8 << 20, host_cache_bytes=1 << 20, decode_isolation="threads"),
        language=LanguageSettings(kv_bytes=8 << 20, landing_bytes=8 << 20, swap_bytes=1 << 20),
    )
    roles = {"encode-0": frozenset({Role.ENCODE}), "decode-0": frozenset({Role.PREFILL, Role.DECODE})}
    started = [WorkerHost(Placement(name, of, device="cpu"), BUILDERS, settings) for name, of in roles.items()]
    yield [KnownWorker(name, host.start(), roles[name]) for name, host in zip(roles, started, strict=True)]
    for host in started:
        host.stop()


@pytest.fixture
async def faulty(card: ModelCard) -> AsyncIterator[Served]:
    """A server whose workers fail as they are told to."""
    async with serving(card, tiers(card, "e", "e", "p", "p", "d", "d"), slo=LEVELS) as served:
        yield served


async def names_told(served: Served) -> set[str]:
    """Metrics of which there is a sample; histograms and routers' counts by label only where something was counted."""
    everything = samples((await served.client.get("/metrics")).content)
    found = {
        name: value
        for name, value in everything.items()
        if value or "_total{" not in name or "_total{}" in name or "worker_id=" in name
    }
    told = {name.partition("{")[0]: value for name, value in found.items()}
    counted = {name.partition("{")[0] for name, value in found.items() if value and "_count{" in name}
    return {name for name in told if not name.endswith(("_bucket", "_sum", "_count"))} | {
        name.removesuffix(OBSERVED) for name in counted
    }


async def test_every_metric_of_the_list_is_told_and_no_other(
    card: ModelCard, faulty: Served, hosts: list[KnownWorker]
) -> None:
    async with serving(card, self_test=True, media_roots=(str(PICTURES),), max_body_bytes=200_000) as served:
        served.router.fleet.update(hosts)
        await until(lambda: len(served.router.fleet.links) == 2, 30)
        await until(lambda: all(link.takes(role) for link in served.router.fleet.links for role in link.roles), 30)
        file = {"type": "image_url", "image_url": {"url": (PICTURES / "red-circle.png").as_uri()}}
        for _ in range(2):
            assert (await served.chat([file, {"type": "text", "text": "color?"}], max_tokens=4)).status_code == 200
        assert (await served.chat("x" * 300_000)).status_code == 413
        await until(lambda: served.router.running == 0)
        told = await names_told(served)
        timed = samples(served.router.expose_metrics())
    stages = {stage: timed.get(f"triptych:stage_duration_seconds_count{{stage={stage}}}", 0.0) for stage in MEASURED}
    assert [stage for stage, count in stages.items() if not count] == []
    for worker in faulty.workers:
        worker.fail_encode.append(WorkerLost("as told"))
        worker.fail_prefill.append(WorkerLost("as told"))
    assert (await faulty.chat([picture()], max_tokens=3)).status_code in (200, 503)
    assert (await faulty.chat("late", max_tokens=3)).status_code in (200, 503)
    strict = {"x-triptych-slo": "strict"}
    body = {"model": "tiny_vl", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    await faulty.client.post("/v1/chat/completions", headers=strict, json=body)
    await faulty.workers[-1].restart()
    lost = "triptych:worker_links_lost_total{"
    await until(lambda: any(n for name, n in samples(faulty.router.expose_metrics()).items() if name.startswith(lost)))
    told |= await names_told(faulty)
    wanted = {each.name for each in EVERY} | {each.exposed_name for each in WORKER_GAUGES}
    assert told - wanted == {name for name in told if name.endswith("_created")}
    assert wanted - told == OF_GPUS


async def test_a_thousand_ids_urls_models_and_classes_make_no_new_series(card: ModelCard) -> None:
    chance = random.Random(7)
    async with serving(card, tiers(card, "epd")) as served:

        async def round_of(number: int) -> None:
            body = {"model": "tiny_vl", "messages": [{"role": "user", "content": f"{number}"}], "max_tokens": 1}
            headers = {"x-request-id": f"id-{number}", "authorization": f"Bearer {number}"}
            if number % 4 == 1:
                body["model"] = f"model-{number}"
            elif number % 4 == 2:
                url = f"http://127.0.0.1:1/{number}.png"
                body["messages"] = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
            elif number % 4 == 3:
                headers["x-triptych-slo"] = f"class-{number}"
            await served.client.post("/v1/chat/completions", json=body, headers=headers)
            if number % 4 == 0:
                await served.client.get(f"/v1/{chance.random()}")
                await served.client.get("/metrics", params={"worker": f"w{number}"})

        for number in range(12):
            await round_of(number)
        await until(lambda: served.router.running == 0)
        before = set(samples(served.router.expose_metrics()))
        for number in range(12, 1012):
            await round_of(number)
        await until(lambda: served.router.running == 0)
        assert set(samples(served.router.expose_metrics())) == before


async def test_a_request_is_held_against_the_class_of_its_header_else_its_keys(card: ModelCard, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(toml_of(Key("alice", digest_of("a"), is_admin=True, slo="strict")))
    async with serving(card, tiers(card, "epd"), slo=LEVELS, api_keys_file=str(keys)) as served:
        served.client.headers["authorization"] = "Bearer a"
        assert (await served.chat(max_tokens=3)).status_code == 200
        served.client.headers["x-triptych-slo"] = "easy"
        assert (await served.chat(max_tokens=3)).status_code == 200
        await served.frames(max_tokens=3)
        assert (await served.chat([image(b"no picture")])).status_code == 400  # the client's own, held against nobody
        served.workers[0].fail_prefill += [WorkerLost("as told")] * 4
        assert (await served.chat(max_tokens=3)).status_code == 503
        served.client.headers["x-triptych-slo"] = "gold"
        refused = await served.chat(max_tokens=3)
        assert refused.status_code == 400
        assert "'gold' is not one of easy, strict" in refused.json()["error"]["message"]
        await until(lambda: served.router.running == 0)
        found = samples((await served.client.get("/metrics")).content)
    assert found["triptych:slo_requests_total{slo=strict}"] == 1
    assert found["triptych:request_slo_violations_total{limit=ttft,slo=strict}"] == 1
    assert found["triptych:slo_attained_requests_total{slo=strict}"] == 0
    assert found["triptych:slo_requests_total{slo=easy}"] == 3
    assert found["triptych:slo_attained_requests_total{slo=easy}"] == 2
    assert found["triptych:slo_attained_tokens_total{slo=easy}"] == 6
    assert found["triptych:request_slo_violations_total{limit=failed,slo=easy}"] == 1
    assert found["triptych:slo_attainment_ratio{slo=easy,window=5m}"] == pytest.approx(2 / 3)
    assert found["triptych:slo_burn_rate{slo=strict,window=1h}"] == pytest.approx(10)


async def test_an_answer_that_a_bug_of_ours_breaks_off_is_a_miss_and_no_client_that_left(
    card: ModelCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> str:
        raise RuntimeError("a bug")

    async with serving(card, tiers(card, "epd"), slo=LEVELS) as served:
        monkeypatch.setattr(CompletionForm, "end", broken)
        for prompt in ("hello", ["hello", "bye"]):
            asked = {"model": "tiny_vl", "prompt": prompt, "stream": True, "max_tokens": 2}
            with pytest.raises(httpx.RemoteProtocolError):
                await served.client.post("/v1/completions", json=asked)
        await until(lambda: served.router.running == 0)
        found = samples(served.router.expose_metrics())
    assert found["triptych:slo_requests_total{slo=easy}"] == 3
    assert found["triptych:request_slo_violations_total{limit=failed,slo=easy}"] == 3
    assert found["triptych:request_errors_total{error=InternalError}"] == 2


async def test_an_image_whose_host_is_slow_or_refuses_is_no_miss_of_the_servers(card: ModelCard) -> None:
    data = response((PICTURES / "red-circle.png").read_bytes())

    async def answer(visit: Visit, writer: asyncio.StreamWriter) -> None:
        if visit.target == "/never":
            await asyncio.wait_for(hung.wait(), 20)
        await asyncio.sleep(0.4 if visit.target == "/slow" else 0.0)
        writer.write(data if visit.target != "/none" else response(b"", "404 Not Found"))

    quick = SLOSettings("quick", (ServiceClass("quick", ttft_seconds=0.3, e2e_seconds=60.0, target=0.9),))
    hung, home = asyncio.Event(), {"allow_media_cidrs": ("127.0.0.0/8",), "fetch_timeout_seconds": 20.0}
    limits: dict[str, Any] = home | {"stage_timeout_seconds": 1.0}
    async with origin(answer) as host, serving(card, tiers(card, "epd"), slo=quick, **limits) as served:

        async def ask(path: str) -> httpx.Response:
            return await served.chat([{"type": "image_url", "image_url": {"url": host.url(path)}}], max_tokens=2)

        assert (await ask("/slow")).status_code == 200
        assert (await ask("/none")).status_code == 400
        late = await ask("/never")
        hung.set()
        assert (late.status_code, late.json()["error"]["code"]) == (400, "image_fetch_timeout")
        await until(lambda: served.router.running == 0)
        found = samples(served.router.expose_metrics())
    assert found["triptych:slo_requests_total{slo=quick}"] == 0
    (first,) = (value for name, value in found.items() if name == "triptych:time_to_first_token_seconds_sum{}")
    assert first > 0.4, "the client's wait is told as it was"


async def test_prometheus_is_told_one_target_for_routers_and_one_for_each_worker(card: ModelCard) -> None:
    async with serving(card, tiers(card, "e", "pd")) as served:
        assert (await served.chat([picture()], max_tokens=2)).status_code == 200
        found = (await served.client.get("/v1/cluster/http_sd")).json()
        address = served.base_url.removeprefix("http://")
        assert [each["targets"] for each in found] == [[address]] * 3
        assert [each["labels"].get("instance") for each in found] == [None, "e-0", "pd-1"]
        types = [each["labels"].get("__meta_triptych_worker_type") for each in found]
        assert types == [None, "encode", "decode+prefill"]
        assert {each["labels"]["model_name"] for each in found} == {"tiny_vl"}
        texts = []
        for each in found:
            labels = each["labels"]
            params = {name.removeprefix("__param_"): value for name, value in labels.items() if "__param_" in name}
            reply = await served.client.get(f"http://{each['targets'][0]}{labels['__metrics_path__']}", params=params)
            assert reply.status_code == 200
            texts.append(samples(reply.content))
        assert sum(len(text) for text in texts) == len(set().union(*texts))  # nothing is told twice
        assert any(name.startswith("triptych:kv_blocks{worker_id=pd-1") for name in texts[2])
        await served.workers[0].kill()
        await until(lambda: str(served.router.fleet.links[0].state) == "unknown")
        assert (await served.client.get("/metrics", params={"worker": "e-0"})).status_code == 503
        assert (await served.client.get("/metrics", params={"worker": "nobody"})).status_code == 404


async def test_items_of_an_encode_call_that_fails_whole_have_failed_and_those_given_up_for_another_have_not(
    card: ModelCard,
) -> None:
    async def failed(served: Served) -> float:
        await until(lambda: served.router.running == 0)
        found = samples(served.router.expose_metrics())
        return found["triptych:encoder_requests_total{modality=image,status=failed}"]

    three = [picture("red-circle.png"), picture("chart.png"), picture("tower.png")]
    async with serving(card, tiers(card, "e", "pd")) as served:
        encoder = served.workers[0]
        encoder.fail_encode.append(WorkerLost("as told"))
        assert (await served.chat(three, max_tokens=2)).status_code == 200
        assert await failed(served) == 3
        encoder.fail_item[1] = InvalidMedia("as told")
        assert (await served.chat(three, max_tokens=2)).status_code == 400
        assert await failed(served) == 4, "the third was given up for the second's sake"


async def test_what_an_encoder_fails_with_is_counted_once_whether_or_not_another_try_mends_it(card: ModelCard) -> None:
    async with serving(card, tiers(card, "e", "pd")) as served:
        encoder = served.workers[0]
        encoder.fail_item[0] = InvalidMedia("as told")
        assert (await served.chat([picture()], max_tokens=2)).status_code == 400
        encoder.fail_item.clear()
        encoder.fail_encode.append(WorkerLost("as told"))
        assert (await served.chat([picture()], max_tokens=2)).status_code == 200
        found = samples(served.router.expose_metrics())
    status = {each: found[f"triptych:encoder_requests_total{{modality=image,status={each}}}"] for each in STATUSES}
    assert status == {"failed": 2, "encoded": 1, "cached": 0}
    for error in ("InvalidMedia", "WorkerLost"):
        assert found[f"triptych:stage_errors_total{{error={error},stage=encode}}"] == 1
    assert found["triptych:retries_total{stage=encode}"] == 1
