"""The environment: identity first, each name once, whatever a value refers to before it."""

import re

from hypothesis import given
from hypothesis import strategies as st
from trainyard.api.fabric import PodAdditions
from trainyard.api.names import is_reserved_env
from trainyard.network.settings import Setting, Settings, Source
from trainyard.render.env import environment, identity


def variable(name, value="template"):
    return {"name": name, "value": value}


def settings(*named, added=()):
    return Settings(
        settings=tuple(Setting(name, value, source, "because") for name, value, source in named),
        additions=PodAdditions(env=tuple(added)),
    )


def listed(env):
    return [(v["name"], v["value"]) for v in env if "value" in v and not v["name"].startswith("TRAINYARD_")]


def test_a_pod_learns_who_it_is_from_the_api_server():
    by_name = {v["name"]: v for v in environment(Settings(), [])}
    assert by_name["TRAINYARD_POD"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    assert by_name["TRAINYARD_POD_UID"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.uid"
    assert by_name["TRAINYARD_PLAN"]["value"] == "/etc/trainyard/plan/plan.json"
    assert by_name["TRAINYARD_CONTROL_KEY_FILE"]["value"] == "/etc/trainyard/control/key"
    assert by_name["TRAINYARD_PORT"]["value"] == "9400"


def test_fabric_then_job_then_template():
    env = environment(
        settings(("F", "fabric", Source.FABRIC), ("J", "job", Source.JOB), added=[variable("A", "added")]),
        [variable("T")],
    )
    assert listed(env) == [("F", "fabric"), ("A", "added"), ("J", "job"), ("T", "template")]


def test_the_jobs_settings_win_over_its_template_and_both_over_the_fabrics_additions():
    env = environment(
        settings(
            ("X", "job", Source.JOB), added=[variable("X", "added"), variable("Y", "added"), variable("Z", "added")]
        ),
        [variable("X"), variable("Y")],
    )
    assert listed(env) == [("Z", "added"), ("X", "job"), ("Y", "template")]


def test_the_launcher_is_told_which_names_are_not_the_jobs_own():
    env = environment(
        settings(("F", "fabric", Source.FABRIC), ("D", "derived", Source.DERIVED), ("J", "job", Source.JOB)),
        [variable("T"), variable("F")],
    )
    assert [v["value"] for v in env if v["name"] == "TRAINYARD_GIVEN"] == ["D"]
    assert not any(v["name"] == "TRAINYARD_GIVEN" for v in environment(settings(), [variable("T")]))


def test_an_addition_wins_over_a_setting_of_the_fabric():
    env = environment(settings(("X", "setting", Source.FABRIC), added=[variable("X", "addition")]), [])
    assert listed(env) == [("X", "addition")]


def test_identity_cannot_be_replaced():
    env = environment(
        settings(added=[variable("RANK", "1")]), [variable("WORLD_SIZE"), variable("TRAINYARD_POD", "me")]
    )
    assert env == identity()


def test_of_two_in_the_template_the_last_counts_as_in_kubernetes():
    assert listed(environment(Settings(), [variable("A", "1"), variable("B", "2"), variable("A", "3")])) == [
        ("B", "2"),
        ("A", "3"),
    ]


def test_what_comes_from_elsewhere_is_kept_as_it_is():
    secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token", "optional": True}}}
    assert environment(Settings(), [secret])[-1] == secret


def expanded(env):
    """What the container sees: Kubernetes expands $(NAME) from the variables before, and keeps it where there is none."""
    seen: dict[str, str] = {}
    for v in env:
        value = v.get("value", "from elsewhere")
        seen[v["name"]] = re.sub(r"\$\((\w+)\)", lambda match: seen.get(match[1], match[0]), value)
    return seen


names = st.sampled_from(["A", "B", "C", "D", "RANK", "PET_NNODES", "TRAINYARD_PLAN"])
values = st.sampled_from(["1", "$(A)", "$(B)/x", "$(TRAINYARD_PLAN)", "$(C)$(D)", "$(RANK)"])
variables = st.lists(st.builds(variable, names, values), max_size=6, unique_by=lambda v: v["name"])


@given(variables, variables, variables, variables)
def test_the_user_sees_his_values_with_all_that_they_refer_to(of_fabric, added, of_job, of_template):
    given_settings = settings(
        *((v["name"], v["value"], Source.FABRIC) for v in of_fabric),
        *((v["name"], v["value"], Source.JOB) for v in of_job),
        added=added,
    )
    env = [v for v in environment(given_settings, of_template) if v["name"] != "TRAINYARD_GIVEN"]
    listed_names = [v["name"] for v in env]
    assert len(listed_names) == len(set(listed_names))
    assert env[: len(identity())] == identity()
    assert not any(is_reserved_env(name) for name in listed_names[len(identity()) :])

    # As if all had been written one after the other and Kubernetes had to choose among equal names.
    written = [
        *of_fabric,
        *added,
        *(v for v in of_template if v["name"] in {j["name"] for j in of_job}),
        *of_job,
        *of_template,
    ]
    winners = {v["name"]: v["value"] for v in written if not is_reserved_env(v["name"])}
    winners |= {v["name"]: v["value"] for v in of_job if not is_reserved_env(v["name"])}
    assert {v["name"]: v["value"] for v in env[len(identity()) :]} == winners

    users = [
        v["name"]
        for v in of_template
        if v["name"] not in {j["name"] for j in of_job} and not is_reserved_env(v["name"])
    ]
    assert [name for name in listed_names if name in users] == users
    seen = expanded(env)
    assert all("$(TRAINYARD_PLAN)" not in value for value in seen.values())
