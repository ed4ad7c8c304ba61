"""A lock, and surveys of nodes on which a plan was applied, for tests of the difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from facts.records import Answer, HubFiles, LocalImage, ManagedFile, ServiceState, Space, Survey
from locks.records import Lock
from plans import paths
from plans.deployment import drop_in_file, unit_files
from plans.make import make_plan
from plans.plan import NodePlan, ServicePlan
from plans.wishes import Wishes
from tests.unit.surveys import survey, wishes

VERSION = "0.1.0"
COMMIT = "c1" * 20
INDEX = "sha256:" + "1" * 64
MANIFEST = "sha256:" + "2" * 64
CONFIG = "sha256:" + "3" * 64
TIME = "2026-11-30T04:00:00+00:00"
IMAGE = "lmsysorg/sglang:v0.5.23"
PINNED = f"lmsysorg/sglang@{INDEX}"
CAP = {"output_cap": 8192}


def lock(**changes: Any) -> Lock:
    """Return the lock of the newest image and of one model; ``changes`` are of the image."""
    platform = {
        "manifest_digest": MANIFEST,
        "manifest_media_type": "application/vnd.oci.image.manifest.v1+json",
        "config_digest": CONFIG,
        "config_media_type": "application/vnd.oci.image.config.v1+json",
        "compressed_bytes": 10_000_000_000,
    }
    image = {
        "asked": IMAGE,
        "registry": "docker.io",
        "repository": "lmsysorg/sglang",
        "tag": "v0.5.23",
        "index_digest": INDEX,
        "index_media_type": "application/vnd.oci.image.index.v1+json",
        "platforms": {"linux/amd64": platform},
        "answered_by": "registry-1.docker.io",
        "resolved_at": TIME,
        **changes,
    }
    models: list[dict[str, Any]] = [
        {
            "repo": "Qwen/Qwen3-8B",
            "asked_revision": revision,
            "commit": COMMIT,
            "files": [],
            "resolved_at": TIME,
        }
        for revision in ("main", "v2")
    ]
    return Lock.model_validate(
        {
            "images": {image["asked"]: image},
            "models": {f"{one['repo']}@{one['asked_revision']}": one for one in models},
        }
    )


def fresh(**changes: Any) -> Survey:
    """Return the survey of a healthy node that has room, and nothing of ours yet."""
    base = survey()
    return replace(
        base,
        docker=replace(base.docker, root_dir="/var/lib/docker"),
        spaces={
            path: Space(path, True, path, mount="/", free_bytes=10**12, read_only=False)
            for path in (
                "/var/lib/docker",
                paths.STATE,
                paths.CACHES,
                paths.WEIGHTS,
                "/etc/systemd/system",
            )
        },
        listeners=(),
        **changes,
    )


def plan(
    node: Survey | None = None,
    wanted: Wishes | None = None,
    locked: Lock | None = None,
    *,
    no_lock: bool = False,
    discard_edits: bool = False,
) -> NodePlan:
    """Return the plan of a node: a fresh one, for one service, with the whole lock by default."""
    return make_plan(
        node or fresh(),
        wanted or wishes(CAP),
        None if no_lock else locked or lock(),
        VERSION,
        discard_edits=discard_edits,
    )


def one(of: NodePlan) -> ServicePlan:
    """Return the plan of the only service."""
    assert len(of.services) == 1
    return of.services[0]


def applied(of: NodePlan, node: Survey | None = None) -> Survey:
    """Return what the survey of a node reads once this plan was applied to it."""
    node = node or fresh()
    files = dict(node.files)
    services = dict(node.services)
    weights = dict(node.weights)
    spaces = dict(node.spaces)
    for service in of.services:
        if (model := service.weights) is not None:
            there = Space(model.directory, exists=True, existing=model.directory)
            home = spaces.get(paths.WEIGHTS, there)
            spaces[model.directory] = replace(home, path=model.directory)
            sizes = {one.path: (one.size_bytes, 1000) for one in model.files}
            sums = {one.path: one.sha256 or one.git_blob or "" for one in model.files}
            marked = {path: (*seen, sums[path]) for path, seen in sizes.items()}
            key = f"{model.home}:{paths.hub_cache_of(model.repo)}"
            weights[key] = HubFiles({model.commit: marked}, {model.commit: sizes})
        assert service.launch is not None, of.refusals or of.unresolved
        units = unit_files(service.launch)
        for path in service.removed:
            files.pop(path)
        for file in (*service.files, *units, drop_in_file(service.launch)):
            if file.link is not None:
                files[file.path] = ManagedFile(file.path, True, link=file.link)
                continue
            secret = file.mode == "0600"
            files[file.path] = ManagedFile(
                file.path,
                True,
                file.sha256,
                file.mode,
                "root:root",
                *([] if secret else [file.text]),
            )
        before = services.get(service.name)
        name = service.launch.service.name
        services[name] = ServiceState(
            name=name,
            load_state="loaded",
            active_state="active",
            sub_state="running",
            result="success",
            unit_file_state="enabled",
            main_pid=4242,
            restarts=0,
            invocation_id="ab" * 16,
            need_daemon_reload=False,
            fragment_path=units[0].path,
            drop_ins=(paths.drop_in(name),),
            current=service.number,
            previous=before.current if before else ServiceState(name).current,
            deployments=(*(before.deployments if before else ()), service.number),
            launch={
                "SGLANG_PORT": str(service.launch.service.port),
                "SGLANG_IMAGE": service.launch.image,
                "SGLANG_RELEASE": service.decision.release or "",
                "SGLANG_RUNTIME": service.launch.runtime,
            },
            plan=service.files[-1].text,
            record='{"result": "ready, and it generates"}\n',
            answer=Answer(200, (service.launch.service.public_name,)),
        )
    image = LocalImage("lmsysorg/sglang", None, INDEX, CONFIG)
    return replace(
        node,
        spaces=spaces,
        files=files,
        services=services,
        weights=weights,
        docker=replace(node.docker, images=(image,)),
    )


def converged(wanted: Wishes | None = None) -> Survey:
    """Return the survey of a node on which a plan for these wishes was applied."""
    return applied(plan(wanted=wanted))


def with_state(node: Survey, name: str = "chat", **changes: Any) -> Survey:
    """Return the survey with changes to the state of one service."""
    services = {**node.services, name: replace(node.services[name], **changes)}
    return replace(node, services=services)


def with_file(node: Survey, path: str, change: Callable[[ManagedFile], ManagedFile]) -> Survey:
    """Return the survey with one of its files changed."""
    return replace(node, files={**node.files, path: change(node.files[path])})


def edited(file: ManagedFile) -> ManagedFile:
    """Return the file as it is after someone wrote a line to its end."""
    return replace(file, sha256="e" * 64, text=f"{file.text}# mine\n")


def kinds(of: NodePlan) -> list[str]:
    """Return the kinds of a plan's changes, in order."""
    return [change.kind for change in of.changes]


def codes(of: NodePlan) -> list[str]:
    """Return the codes of a plan's refusals, in order."""
    return [refusal.code for refusal in of.refusals]
