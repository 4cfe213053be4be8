"""The objects of Kubernetes, checked by its published schemas."""

import dataclasses

import kubernetes_validate
import pytest
import yaml

from monolith.errors import InvalidArgumentError
from monolith.launch.manifests import ClusterJob, KubernetesPlace, kubernetes_objects, yaml_text

VERSIONS = ("1.31", "1.33", "1.37")
HOSTILE = ["$(INDEX)", "a b", "$x", "yes", "'", '"', "\n", "{{x}}", "- x", "\u2028é", "#"]


@pytest.fixture
def job(tmp_path):
    (tmp_path / "task.py").write_text("x = 1\n")
    (tmp_path / "s.json").write_text("{}")
    return ClusterJob("clicks", str(tmp_path / "task.py"), 2, 3, keys="clicks-keys")


PLACE = KubernetesPlace("registry:5000/monolith:1@sha256:ab", "clicks-keys")


def objects_of(job, place=PLACE, **changes):
    """Kind -> object, as a reader of the printed text gets them."""
    objects = kubernetes_objects(dataclasses.replace(job, **changes), place)
    return {each["kind"]: each for each in yaml.safe_load_all(yaml_text(objects))}


def pod_of(owner):
    return owner["spec"]["template"]["spec"]


def arguments_of(owner):
    return pod_of(owner)["containers"][0]["args"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({}, PLACE),
        ({"num_servers": 1, "num_workers": 1, "restarts": 0, "memory": "512Mi"}, PLACE),
        ({"task": "models.Ranker"}, PLACE),
        ({"settings": HOSTILE, "data": HOSTILE}, PLACE),
        (
            {"worker_options": {"--checkpoints": "/data/run", "--save-every": 5}},
            KubernetesPlace("i", "k.e.y", "9-team", {"a.b": "/data", "c": "/more/data"}),
        ),
    ],
)
def test_the_objects_fit_the_schemas(job, version, changes, place):
    for each in objects_of(job, place, **changes).values():
        kubernetes_validate.validate(each, version, strict=True)


def test_the_schemas_refuse_a_field_that_is_not_there(job):
    servers = objects_of(job)["StatefulSet"]
    servers["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(servers, VERSIONS[0], strict=True)


def test_a_job_is_a_stateful_set_and_an_indexed_job(job):
    objects = objects_of(job)
    assert list(objects) == ["ConfigMap", "Service", "StatefulSet", "Job"]
    assert objects["StatefulSet"]["spec"]["replicas"] == 2
    spec = objects["Job"]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (3, 3, "Indexed")
    assert spec["backoffLimitPerIndex"] == 3


def test_selectors_find_the_pods(job):
    objects = objects_of(job)
    servers, service = objects["StatefulSet"]["spec"], objects["Service"]["spec"]
    labels = servers["template"]["metadata"]["labels"]
    assert servers["selector"]["matchLabels"] == service["selector"] == labels
    assert labels != objects["Job"]["spec"]["template"]["metadata"]["labels"]
    assert servers["serviceName"] == objects["Service"]["metadata"]["name"]


def test_workers_know_the_servers_by_name(job):
    words = arguments_of(objects_of(job)["Job"])
    assert words[words.index("--servers") + 1] == (
        "clicks-ps-0.clicks-ps:7000,clicks-ps-1.clicks-ps:7000"
    )


def test_a_wrong_option_fails_the_job_and_a_drained_node_does_not(job):
    usage, disruption = objects_of(job)["Job"]["spec"]["podFailurePolicy"]["rules"]
    assert (usage["action"], usage["onExitCodes"]["values"]) == ("FailJob", [2])
    assert usage["onExitCodes"]["containerName"] == "monolith"
    assert disruption["action"] == "Ignore"


def test_values_reach_the_roles_as_they_are(job):
    words = arguments_of(objects_of(job, data=HOSTILE)["Job"])
    data = [words[i + 1] for i, word in enumerate(words) if word == "--data"]
    assert data == [word.replace("$", "$$") for word in HOSTILE]  # `$$` is `$` for Kubernetes


def test_files_come_with_the_job(job, tmp_path):
    task, settings = f"{job.task}:Ranker", str(tmp_path / "s.json")
    objects = objects_of(job, task=task, settings_file=settings)
    assert objects["ConfigMap"]["data"] == {"task.py": "x = 1\n", "s.json": "{}"}
    words = arguments_of(objects["StatefulSet"])
    assert words[1] == "/etc/monolith/task.py:Ranker"
    assert words[words.index("--settings") + 1] == "/etc/monolith/s.json"


def test_a_task_of_the_image_needs_no_config_map(job):
    objects = objects_of(job, task="models.Ranker")
    assert "ConfigMap" not in objects
    assert "configMap" not in str(objects)


def test_all_objects_have_the_namespace(job):
    objects = objects_of(job, KubernetesPlace("i", "k", "team"))
    assert {each["metadata"].get("namespace") for each in objects.values()} == {"team"}


def test_only_the_copy_of_the_keys_reads_the_secret(job):
    pod = pod_of(objects_of(job)["StatefulSet"])
    (copy,), (container,) = pod["initContainers"], pod["containers"]
    mounts = [[mount["name"] for mount in each["volumeMounts"]] for each in (copy, container)]
    assert mounts == [["secret", "keys"], ["keys", "files"]]
    assert copy["command"][:3] == ["install", "-m", "600"]


def test_roles_have_the_time_of_a_save(job):
    servers = objects_of(job, grace_seconds=77)["StatefulSet"]
    words = arguments_of(servers)
    assert pod_of(servers)["terminationGracePeriodSeconds"] == 77
    assert words[words.index("--linger-seconds") + 1] == "77"


def test_cores_are_threads_unless_the_settings_say_otherwise(job):
    assert "train.threads=4" in arguments_of(objects_of(job, cpus=4)["Job"])
    assert "train.threads=4" not in arguments_of(objects_of(job, cpus=4, has_threads=True)["Job"])


@pytest.mark.parametrize("has_checkpoints", [True, False])
def test_a_job_that_saves_goes_on_by_itself(job, has_checkpoints):
    options = {"--checkpoints": "s3://b/run" if has_checkpoints else None}
    words = arguments_of(objects_of(job, worker_options=options)["Job"])
    assert ("--auto-resume" in words) == has_checkpoints


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("name", "Clicks", "expected --name of lower-case letters"),
        ("name", "a" * 41, "at most 40 characters, got 'aaa"),
        ("name", "1a", "from a letter"),
        ("name", "a-", "to a letter or digit"),
        ("name", "a\n", "expected --name"),
        ("memory", "4", "expected --memory as a number with Mi or Gi, such as 4Gi, got '4'"),
        ("memory", "4Gi\n", "expected --memory"),
        ("settings", ["a\0"], "expected a text without NUL"),
    ],
)
def test_a_value_that_no_scheduler_takes_is_refused(job, field, value, text):
    with pytest.raises(InvalidArgumentError, match=text):
        dataclasses.replace(job, **{field: value})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"image": "a b"}, "expected --image as name:tag, got 'a b'"),
        ({"image": "i\n"}, "expected --image"),
        ({"namespace": "Team"}, "expected --namespace .* got 'Team'"),
        ({"secret": "a/b"}, "expected --keys with a name .* got 'a/b'"),
        ({"volumes": {"A": "/a"}}, "expected --volume with a name"),
        ({"volumes": {"a": "b"}}, "expected --volume CLAIM=/PATH, got a=b"),
        ({"volumes": {"a": "/b/../c"}}, "expected --volume CLAIM=/PATH"),
        ({"volumes": {"a": "/etc/monolith"}}, "expected another path than /etc/monolith"),
        ({"volumes": {"a": "/run/monolith/keys"}}, "expected another path"),
        ({"volumes": {"a": "/a", "b": "/a"}}, "expected different paths of --volume"),
    ],
)
def test_a_place_that_is_none_is_refused(fields, text):
    with pytest.raises(InvalidArgumentError, match=text):
        KubernetesPlace(**{"image": "i", "secret": "k", **fields})


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a b.py", b"", "expected the name of a file of letters"),
        ("a.py", b"\xff", "expected a file of UTF-8"),
        ("a.py", b"#" * 1_000_001, "at most 1,000,000 bytes for a ConfigMap, got 1,000,001"),
    ],
)
def test_a_file_that_fits_no_config_map_is_refused(job, tmp_path, name, content, text):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=text):
        objects_of(job, task=str(tmp_path / name))
