"""Kubernetes manifests by their structure: what the API server and KubeRay require, and what our placement asks for."""

import json
import re
import shlex
import subprocess
import tomllib
from typing import Any

import kubernetes_validate
import pytest

from tests.deploy.shell import DEPLOY, ROOT, documents_of
from triptych.cluster.placing import tier_resource
from triptych.config import Settings, load_settings
from triptych.journey import Role

FILE = DEPLOY / "kuberay" / "raycluster.yaml"
BY_KIND: dict[str, dict[str, Any]] = {document["kind"]: document for document in documents_of(FILE)}
CLUSTER = BY_KIND["RayCluster"]["spec"]
HEAD = CLUSTER["headGroupSpec"]
GROUPS = CLUSTER["workerGroupSpecs"]
PODS = [group["template"]["spec"] for group in (HEAD, *GROUPS)]
CONTAINERS = [container for pod in PODS for container in pod["containers"]]
QUANTITY = re.compile(r"^\d+(\.\d+)?(m|Ki|Mi|Gi|Ti|k|M|G)?$")
API_VERSIONS = {
    "ConfigMap": "v1",
    "Service": "v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "RayCluster": "ray.io/v1",
}
# Of KubeRay's RayClusterSpec and its groups, those that exist and are used here.
CLUSTER_FIELDS = {"rayVersion", "authOptions", "enableInTreeAutoscaling", "autoscalerOptions", "headGroupSpec"}
GROUP_FIELDS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}


# What Kubernetes itself has schemas of: all but KubeRay's own, of which a group's template is a pod without its frame.
OF_KUBERNETES = [document for kind, document in BY_KIND.items() if kind != "RayCluster"] + [
    {"apiVersion": "v1", "kind": "Pod", **group["template"]} for group in (HEAD, *GROUPS)
]


def settings() -> Settings:
    tables = tomllib.loads(BY_KIND["ConfigMap"]["data"]["triptych.toml"])
    flags = {f"{table}.{name}": value for table, entries in tables.items() for name, value in entries.items()}
    return load_settings(environment={}, flags=flags)


def resources_told(group: dict[str, Any]) -> dict[str, float]:
    """What `ray start` gets, once a shell has read what KubeRay writes there."""
    (word,) = shlex.split(group["rayStartParams"].get("resources", "'{}'"))
    found: dict[str, float] = json.loads(word)
    return found


@pytest.mark.parametrize("kind", sorted(BY_KIND))
def test_each_document_says_what_it_is(kind: str) -> None:
    document = BY_KIND[kind]
    assert document["apiVersion"] == API_VERSIONS[kind]
    assert re.match(r"^[a-z]([a-z0-9-]*[a-z0-9])?$", document["metadata"]["name"])
    assert set(document) <= {"apiVersion", "kind", "metadata", "spec", "data"}


@pytest.mark.parametrize("document", OF_KUBERNETES, ids=lambda document: document["kind"])
def test_kubernetes_own_schemas_take_it(document: dict[str, Any]) -> None:
    named = {**document, "metadata": {"name": "x", **document["metadata"]}}
    kubernetes_validate.validate(named, kubernetes_validate.latest_version(), strict=True)


def test_kubernetes_own_schemas_refuse_a_field_that_is_none() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [{"imge": "x"}]}}
    with pytest.raises(kubernetes_validate.ValidationError, match="imge"):
        kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)


def test_the_cluster_has_the_fields_that_kuberay_knows_and_requires() -> None:
    assert set(CLUSTER) == CLUSTER_FIELDS | {"workerGroupSpecs"}
    assert {"rayStartParams", "template"} <= set(HEAD)
    assert all(set(group) == GROUP_FIELDS for group in GROUPS)
    assert all(isinstance(value, str) for group in (HEAD, *GROUPS) for value in group["rayStartParams"].values())


def test_rays_version_is_that_of_the_image() -> None:
    assert f"ray=={CLUSTER['rayVersion']}" in (ROOT / "constraints.txt").read_text().splitlines()


def test_ray_asks_for_a_token() -> None:
    assert CLUSTER["authOptions"] == {"mode": "token"}


def test_there_is_a_group_of_pods_for_each_tier_and_it_can_grow() -> None:
    assert [resources_told(group) for group in GROUPS] == [{tier_resource(role): 1} for role in Role]
    assert resources_told(HEAD) == {}
    assert all(1 <= group["minReplicas"] <= group["replicas"] < group["maxReplicas"] for group in GROUPS)
    assert CLUSTER["enableInTreeAutoscaling"]


def test_the_server_pins_its_workers_to_those_pods_and_never_starts_a_ray() -> None:
    found = settings()
    assert found.serve.pin_tiers
    assert found.serve.ray == "127.0.0.1:6379"
    assert (found.serve.encoders, found.serve.prefills, found.serve.decodes) == tuple(g["replicas"] for g in GROUPS)
    gpus = [group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for group in GROUPS]
    assert gpus == [found.serve.gpus_per_worker] * len(GROUPS)


def test_a_server_that_others_reach_has_keys() -> None:
    found = settings().router
    assert found.host == "0.0.0.0"
    mounts = {mount["mountPath"]: mount["name"] for mount in HEAD["template"]["spec"]["containers"][0]["volumeMounts"]}
    folder, _, name = found.api_keys_file.rpartition("/")
    assert mounts[folder] == "keys"
    assert f"--from-file={name}" in FILE.read_text()


@pytest.mark.parametrize("pod", PODS, ids=lambda pod: pod["containers"][0]["name"])
def test_no_pod_runs_as_root_or_may_more(pod: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"]
    user = pod["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}" in (DEPLOY / "container" / "Containerfile").read_text()
    for container in pod["containers"]:
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("pod", PODS, ids=lambda pod: pod["containers"][0]["name"])
def test_each_mount_has_its_volume_and_shared_memory_is_large(pod: dict[str, Any]) -> None:
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for container in pod["containers"]:
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}


@pytest.mark.parametrize("container", CONTAINERS, ids=lambda container: container["name"])
def test_each_container_says_what_it_needs(container: dict[str, Any]) -> None:
    resources = container["resources"]
    for kind in ("requests", "limits"):
        assert {"cpu", "memory"} <= set(resources[kind])
        assert all(QUANTITY.match(str(value)) for value in resources[kind].values())
    assert re.match(r"^[\w.-]+/[\w./-]+:[\w.-]+$", container["image"])
    assert not container["image"].endswith(":latest")


@pytest.mark.parametrize("container", CONTAINERS, ids=lambda container: container["name"])
def test_each_container_starts_ray_as_kuberay_has_worked_it_out(container: dict[str, Any]) -> None:
    assert BY_KIND["RayCluster"]["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"
    (script,) = container["args"]
    environment = {"PATH": "/usr/bin:/bin", "KUBERAY_GEN_RAY_START_CMD": 'echo --resources="{\\"a\\": 1}"'}
    script = script.replace("ulimit -n 65536; ", "").replace("while true", "while false")
    done = subprocess.run([*container["command"], script], capture_output=True, text=True, env=environment)
    assert done.stdout == '--resources={"a": 1}\n', done.stderr


def test_the_service_finds_the_server() -> None:
    service = BY_KIND["Service"]["spec"]
    name = BY_KIND["RayCluster"]["metadata"]["name"]
    assert service["selector"] == {"ray.io/cluster": name, "ray.io/node-type": "head"}
    ports = {port["name"]: port["containerPort"] for port in HEAD["template"]["spec"]["containers"][0]["ports"]}
    assert ports[service["ports"][0]["targetPort"]] == settings().router.port


def test_workers_are_reached_by_the_clusters_own_pods_alone() -> None:
    policy = BY_KIND["NetworkPolicy"]["spec"]
    own = {"ray.io/cluster": BY_KIND["RayCluster"]["metadata"]["name"]}
    assert policy["podSelector"]["matchLabels"] == own
    assert policy["policyTypes"] == ["Ingress"]
    for rule in policy["ingress"]:
        is_ours = rule.get("from") == [{"podSelector": {"matchLabels": own}}]
        assert is_ours or {port["port"] for port in rule["ports"]} <= {8000, 8265}


def test_pods_of_workers_may_ask_kubernetes_for_nothing() -> None:
    assert [group["template"]["spec"]["automountServiceAccountToken"] for group in GROUPS] == [False] * len(GROUPS)
