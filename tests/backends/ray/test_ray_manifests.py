"""The manifests for Kubernetes in docs/deploy, as far as they can be checked without a cluster."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from redoma import BackendUnavailable
from redoma.backends.ray.processes import read_invitation

DEPLOY = Path(__file__).parents[3] / "docs" / "deploy"
KUBERNETES = "1.33"  # the first with user namespaces for everybody, as the files say


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def pods() -> list[Any]:
    (cluster,) = documents("kuberay.yaml")
    template, pool = documents("agent-sandbox.yaml")
    assert pool["spec"]["sandboxTemplateRef"]["name"] == template["metadata"]["name"]
    workers = {f"worker {each['groupName']}": each["template"] for each in cluster["spec"]["workerGroupSpecs"]}
    found = {"head": cluster["spec"]["headGroupSpec"]["template"], **workers, "pool": template["spec"]["podTemplate"]}
    return [pytest.param(pod, id=name) for name, pod in found.items()]


def validate(pod: dict[str, Any]) -> None:
    whole = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": pod}
    kubernetes_validate.validate(whole, KUBERNETES, strict=True)


@pytest.mark.parametrize("pod", pods())
def test_pods_are_valid(pod: dict[str, Any]) -> None:
    validate(pod)
    wrong = {**pod, "spec": {**pod["spec"], "hostUser": False}}
    with pytest.raises(kubernetes_validate.ValidationError):  # the control: a misspelt field is noticed
        validate(wrong)


def test_every_volume_that_is_mounted_is_there() -> None:
    for param in pods():
        spec = param.values[0]["spec"]
        volumes = {volume["name"] for volume in spec["volumes"]}
        containers = [*spec["containers"], *spec.get("initContainers", ())]
        assert {mount["name"] for each in containers for mount in each["volumeMounts"]} == volumes


def test_the_invitation_is_mounted_so_that_it_can_be_read(tmp_path: Path) -> None:
    """Kubernetes makes the files of a volume links, which are refused for keys; one that is mounted alone is none."""
    told = re.search(r"invitation.json: (\{.*\})", (DEPLOY / "kuberay.yaml").read_text())
    assert told is not None
    text = re.sub(r"<[^>]*rand -hex 32>", "ab" * 32, told[1])
    volume, node = tmp_path / "volume", tmp_path / "node"
    for place in (volume / "..data", node):
        place.mkdir(parents=True)
        (place / "invitation.json").write_text(text)
        (place / "invitation.json").chmod(0o400)
    os.symlink("..data/invitation.json", volume / "invitation.json")
    with pytest.raises(BackendUnavailable):
        read_invitation(volume)
    assert read_invitation(node).address == "redoma-head-svc:6379"
