"""What the chart renders, by value."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import helm_python
import pytest
import yaml
from support.chart import CHART, NAMESPACE, RELEASE, ROOT, Object, is_hook, one, render, rights

READ = ("get", "list", "watch")


def rule(group: str, resource: str, *verbs: str) -> set[tuple[str, str, str]]:
    return {(group, resource, verb) for verb in verbs}


LONG_NAME = "r" * 53  # as long as Helm lets a release's name be

OPERATOR_RIGHTS = (
    rule("", "nodes", "list", "watch")
    | rule("", "namespaces", "list", "watch")
    | rule("scheduling.k8s.io", "priorityclasses", "list", "watch")
    | rule("trainyard.dev", "fabrics", "list", "watch")
    | rule("trainyard.dev", "fabrics/status", "patch")
    | rule("resource.k8s.io", "resourceslices", "list", "watch")
    | rule("", "persistentvolumeclaims", "get")
    | rule("trainyard.dev", "trainingjobs", *READ, "patch")
    | rule("trainyard.dev", "trainingjobs/status", "update")
    | rule("trainyard.dev", "trainingjobs/finalizers", "update")
    | rule("", "pods", *READ, "create", "delete", "patch")
    | rule("", "services", "get", "create")
    | rule("", "configmaps", "get", "create", "delete")
    | rule("", "secrets", "create")
    | rule("resource.nvidia.com", "computedomains", "get", "create")
    | rule("events.k8s.io", "events", "create", "patch")
)
OPERATOR_RIGHTS_AT_HOME = rule("coordination.k8s.io", "leases", "create") | rule(
    "coordination.k8s.io", "leases[trainyard]", "get", "update"
)


def pod_specs(objects: list[Object]) -> list[Object]:
    return [o["spec"]["template"]["spec"] for o in objects if o["kind"] in ("Deployment", "Job")]


def test_the_operator_has_these_rights_and_no_others() -> None:
    objects = render()
    assert rights(one(objects, "ClusterRole", RELEASE)) == OPERATOR_RIGHTS
    assert rights(one(objects, "Role", f"{RELEASE}-leader")) == OPERATOR_RIGHTS_AT_HOME


@pytest.mark.parametrize("keep_pods", [False, True])
def test_the_uninstall_hook_may_stop_the_operators_and_release_what_they_held(keep_pods: bool) -> None:
    objects = render({"uninstall": {"keepPods": keep_pods}})
    expected = rule("trainyard.dev", "trainingjobs", "list", "patch") | rule("", "pods", "list", "patch")
    expected |= set() if keep_pods else rule("", "pods", "delete")
    assert rights(one(objects, "ClusterRole", f"{RELEASE}-uninstall")) == expected
    assert rights(one(objects, "Role", f"{RELEASE}-uninstall")) == rule("apps", "deployments/scale[trainyard]", "patch")
    (container,) = one(objects, "Job", f"{RELEASE}-uninstall")["spec"]["template"]["spec"]["containers"]
    assert ("--keep-pods" in container["args"]) == keep_pods


def test_the_hooks_rights_exist_only_while_it_runs() -> None:
    for rendered in render():
        if rendered["metadata"]["name"] == f"{RELEASE}-uninstall":
            annotations = rendered["metadata"]["annotations"]
            assert annotations["helm.sh/hook"] == "pre-delete"
            assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"


def test_nobody_but_an_administrator_may_write_a_fabric() -> None:
    objects = render()
    for role in (o for o in objects if o["kind"] == "ClusterRole"):
        fabrics = {verb for _, resource, verb in rights(role) if resource == "fabrics"}
        assert fabrics <= set(READ), role["metadata"]["name"]


def test_what_was_measured_is_written_by_the_operator_and_by_who_is_bound_to_a_role_for_it() -> None:
    roles = {o["metadata"]["name"]: o for o in render() if o["kind"] == "ClusterRole"}
    writers = {name for name, role in roles.items() if ("trainyard.dev", "fabrics/status", "patch") in rights(role)}
    assert writers == {RELEASE, f"{RELEASE}-measurer"}
    labels = roles[f"{RELEASE}-measurer"]["metadata"]["labels"]
    assert not any("aggregate" in label for label in labels)


def test_who_plans_may_read_what_is_decided_by_and_is_bound_by_hand() -> None:
    role = one(render(), "ClusterRole", f"{RELEASE}-planner")
    read = ("get", "list")
    assert rights(role) == (
        rule("", "nodes", *read)
        | rule("", "pods", *read)
        | rule("scheduling.k8s.io", "priorityclasses", *read)
        | rule("resource.k8s.io", "resourceslices", *read)
        | rule("trainyard.dev", "trainingjobs", *read)
        | rule("trainyard.dev", "fabrics", *read)
    )
    assert not any("aggregate" in label for label in role["metadata"]["labels"])


@pytest.mark.parametrize("aggregate", [True, False])
def test_the_roles_for_users_join_the_clusters_own_if_wanted(aggregate: bool) -> None:
    labels = one(render({"rbac": {"aggregate": aggregate}}), "ClusterRole", f"{RELEASE}-editor")["metadata"]["labels"]
    assert ("rbac.authorization.k8s.io/aggregate-to-edit" in labels) == aggregate


def test_every_pod_fits_the_restricted_standard() -> None:
    specs = pod_specs(render())
    assert len(specs) == 2
    for spec in specs:
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == 65532
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["readOnlyRootFilesystem"] is True
            assert own["capabilities"] == {"drop": ["ALL"]}
        assert all(set(volume) <= {"name", "secret", "emptyDir"} for volume in spec.get("volumes", ()))


def test_the_selector_matches_the_pods_the_service_and_the_budget() -> None:
    objects = render({"podLabels": {"team": "infra", "app.kubernetes.io/instance": "not-to-be-changed"}})
    deployment = one(objects, "Deployment", RELEASE)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert selector.items() <= labels.items()
    assert labels["team"] == "infra"
    assert one(objects, "Service", f"{RELEASE}-metrics")["spec"]["selector"] == selector
    assert one(objects, "PodDisruptionBudget", RELEASE)["spec"]["selector"]["matchLabels"] == selector
    uninstall = one(objects, "Job", f"{RELEASE}-uninstall")["spec"]["template"]
    assert not selector.items() <= uninstall["metadata"]["labels"].items()


def test_one_replica_has_no_budget_that_would_block_every_drain() -> None:
    assert [o for o in render({"replicas": 1}) if o["kind"] == "PodDisruptionBudget"] == []


@pytest.mark.parametrize("keep", [True, False])
def test_the_crds_are_the_generated_ones_and_stay_if_wanted(keep: bool) -> None:
    generated = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / "manifests" / "crds").glob("*.yaml")}
    rendered = [o for o in render({"crds": {"keep": keep}}) if o["kind"] == "CustomResourceDefinition"]
    assert {o["metadata"]["name"]: o["spec"] for o in rendered} == {
        o["metadata"]["name"]: o["spec"] for o in generated.values()
    }
    for definition in rendered:
        annotations = definition["metadata"].get("annotations", {})
        assert (annotations.get("helm.sh/resource-policy") == "keep") == keep


def test_crds_can_be_left_to_somebody_else() -> None:
    assert [o for o in render({"crds": {"install": False}}) if o["kind"] == "CustomResourceDefinition"] == []


def test_the_key_is_random_and_stays_with_the_jobs() -> None:
    first, second = (one(render(), "Secret", f"{RELEASE}-key") for _ in range(2))
    assert first["data"]["key"] != second["data"]["key"]
    assert first["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_a_key_of_ones_own_is_mounted_and_none_made() -> None:
    objects = render({"operatorKey": {"existingSecret": "mine"}})
    assert [o for o in objects if o["kind"] == "Secret"] == []
    volumes = one(objects, "Deployment", RELEASE)["spec"]["template"]["spec"]["volumes"]
    assert [v["secret"]["secretName"] for v in volumes if "secret" in v] == ["mine"]


def test_a_digest_wins_over_a_tag() -> None:
    digest = "sha256:" + "a" * 64
    for spec in pod_specs(render({"image": {"repository": "registry.example/op", "tag": "x", "digest": digest}})):
        assert spec["containers"][0]["image"] == f"registry.example/op@{digest}"


def test_the_dashboards_are_the_generated_ones() -> None:
    data = one(render({"dashboards": {"enabled": True}}), "ConfigMap", f"{RELEASE}-dashboards")["data"]
    assert data == {p.name: p.read_text() for p in (ROOT / "manifests" / "dashboards").glob("*.json")}


def test_the_alert_rules_are_the_generated_ones_and_made_only_where_asked_for() -> None:
    assert "PrometheusRule" not in {o["kind"] for o in render()}
    made = one(render({"alerts": {"enabled": True, "labels": {"release": "p"}}}), "PrometheusRule", RELEASE)
    assert made["metadata"]["labels"]["release"] == "p"
    assert made["spec"] == yaml.safe_load((ROOT / "manifests" / "alerts" / "trainyard.yaml").read_text())


def test_monitors_are_made_only_where_asked_for() -> None:
    assert not {o["kind"] for o in render()} & {"ServiceMonitor", "PodMonitor"}
    on: Object = {"enabled": True, "labels": {"release": "prometheus"}}
    objects = render({"metrics": {"serviceMonitor": on, "podMonitor": on}})
    for kind, name in (("ServiceMonitor", RELEASE), ("PodMonitor", f"{RELEASE}-jobs")):
        assert one(objects, kind, name)["metadata"]["labels"]["release"] == "prometheus"


def test_a_scrape_leaves_the_namespace_and_the_job_of_a_series_as_they_are() -> None:
    on: Object = {"enabled": True}
    objects = render({"metrics": {"serviceMonitor": on, "podMonitor": on}})
    ends = [*one(objects, "ServiceMonitor", RELEASE)["spec"]["endpoints"]]
    ends += one(objects, "PodMonitor", f"{RELEASE}-jobs")["spec"]["podMetricsEndpoints"]
    assert [end["honorLabels"] for end in ends] == [True, True]


@pytest.mark.parametrize(
    ("keep_pods", "keep", "aggregate", "name"),
    list(product([True, False], [True, False], [True, False], [RELEASE, LONG_NAME])),
)
def test_all_that_is_rendered_has_a_home_and_a_short_name(
    keep_pods: bool, keep: bool, aggregate: bool, name: str
) -> None:
    values: Object = {"uninstall": {"keepPods": keep_pods}, "crds": {"keep": keep}, "rbac": {"aggregate": aggregate}}
    objects = render(values, name=name)
    seen = [(o["kind"], o["metadata"]["name"]) for o in objects]
    assert len(seen) == len(set(seen))
    for rendered in objects:
        cluster_wide = rendered["kind"] in ("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition")
        assert rendered["metadata"].get("namespace") == (None if cluster_wide else NAMESPACE)
        assert len(rendered["metadata"]["name"]) <= 63
        assert rendered["metadata"]["labels"]["app.kubernetes.io/instance"] == name


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replica": 3}, "replica"),
        ({"replicas": "two"}, "/replicas"),
        ({"image": {"digest": "latest"}}, "/image/digest"),
        ({"image": {"tagg": "x"}}, "tagg"),
        ({"logLevel": "chatty"}, "/logLevel"),
        ({"metrics": {"port": 80}}, "/metrics/port"),
        ({"uninstall": {"keepPods": "yes"}}, "/uninstall/keepPods"),
        ({"leaderElection": {"leaseSeconds": 0}}, "/leaderElection/leaseSeconds"),
    ],
)
def test_a_wrong_value_is_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm_python.HelmValuesError, match=said):
        render(values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"leaderElection": {"leaseSeconds": 10}},
            "leaseSeconds: 10 is no more than renewSeconds, 10: .* use 11 or more",
        ),
        (
            {"leaderElection": {"retrySeconds": 10}},
            "renewSeconds: 10 is no more than retrySeconds, 10: .* use 11 or more",
        ),
        (
            {"nodeConditions": {"administrators": ["ops"]}},
            "administrators: without nodeConditions.enabled no job marks",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused_in_a_sentence(values: Object, said: str) -> None:
    with pytest.raises(helm_python.HelmRenderError, match=said):
        render(values)


def test_who_uninstalls_runs_where_the_operator_may() -> None:
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    where: Object = {
        "nodeSelector": {"role": "infra"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": affinity,
        "priorityClassName": "system-cluster-critical",
    }
    for spec in pod_specs(render(where)):
        assert where.items() <= spec.items()


def test_every_value_is_in_the_schema_and_described() -> None:
    with helm_python.Chart.load(CHART) as chart:
        defaults, schema = chart.values, chart.schema

    def unknown(values: Object, part: Object, at: str) -> list[str]:
        found = []
        for key, value in values.items():
            known = part["properties"].get(key)
            if known is None:
                found.append(f"{at}{key}")
            elif isinstance(value, dict) and "properties" in known:
                found += unknown(value, known, f"{at}{key}.")
        return found

    assert schema is not None
    assert unknown(defaults, schema, "") == []
    lines = (CHART / "values.yaml").read_text().splitlines()
    undescribed = [
        line.strip()
        for before, line in pairwise(lines)
        if line.partition(":")[2].strip() and not line.lstrip().startswith("#") and not before.lstrip().startswith("#")
    ]
    allowed = ("cpu:", "memory:", "grafana_dashboard:", "imagePullSecrets:")
    assert [line for line in undescribed if not line.startswith(allowed)] == []


def test_hooks_are_the_only_objects_that_helm_makes_at_events() -> None:
    assert {o["metadata"]["name"] for o in render() if is_hook(o)} == {f"{RELEASE}-uninstall"}
    assert [o for o in render({"uninstall": {"hook": False}}) if is_hook(o)] == []


@pytest.mark.parametrize("mine", ["", "registry.example/launcher:2"])
def test_the_operators_own_image_carries_the_launcher_unless_another_does(mine: str) -> None:
    deployment = one(render({"launcher": {"image": mine}}), "Deployment", RELEASE)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (variable,) = (v for v in container["env"] if v["name"] == "TRAINYARD_LAUNCHER_IMAGE")
    assert variable["value"] == (mine or container["image"])


def test_the_conditions_of_nodes_are_written_only_where_that_is_switched_on() -> None:
    on = render({"nodeConditions": {"enabled": True, "administrators": ["ops", "infra"]}})
    assert rights(one(on, "ClusterRole", RELEASE)) == OPERATOR_RIGHTS | rule("", "nodes/status", "patch")
    (container,) = one(on, "Deployment", RELEASE)["spec"]["template"]["spec"]["containers"]
    said = {v["name"]: v.get("value") for v in container["env"]}
    assert (said["TRAINYARD_MARK_NODES"], said["TRAINYARD_ADMINISTRATORS"]) == ("true", "ops,infra")
    (container,) = one(render(), "Deployment", RELEASE)["spec"]["template"]["spec"]["containers"]
    assert not {"TRAINYARD_MARK_NODES", "TRAINYARD_ADMINISTRATORS"} & {v["name"] for v in container["env"]}
