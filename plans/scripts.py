"""The programs that apply, restart, stop, verify and remove run on a node, as text.

Each is one remote command, sent over standard input to ``sh -s``: nothing of it
stands in an argument list, and a connection that is cut leaves systemd at work.
"""

from __future__ import annotations

import base64
import ipaddress
import json
from dataclasses import dataclass

from plans import arguments, paths
from plans.canary import CANARY_LIMIT, uses_cuda
from plans.deployment import PROBE_FILES, TEMPLATES, PlannedFile, container_paths, render
from plans.goingback import Back
from plans.onnode import REFUSAL_MARK, base64_lines
from plans.pair import half_of
from plans.places import LEAST_FREE, LEAST_INODES
from plans.plan import ServicePlan
from plans.probe import probes, ready_path_of
from plans.secrets import SecretFile
from plans.verification import PAIR_LIMIT_S
from plans.wishes import Service


def _text(template: str) -> str:
    return (TEMPLATES / template).read_text(encoding="utf-8")


def room_text() -> str:
    """Return the function of a program that says where a disk is full: a part of other programs."""
    return render(
        "room.sh.j2",
        refusal_mark=REFUSAL_MARK,
        kib=LEAST_FREE // 1024,
        inodes=LEAST_INODES,
    )


def write_deployment(directory: str, files: tuple[PlannedFile, ...]) -> str:
    """Return the program that writes a deployment directory whole or not at all."""
    return render(
        "write-deployment.sh.j2",
        links=_text("links.sh"),
        room=room_text(),
        directory=directory,
        refusal_mark=REFUSAL_MARK,
        files=[
            {
                "name": file.name,
                "link": file.link,
                "mode": file.mode,
                "sha256": file.sha256,
                "base64": base64_lines(file.text),
            }
            for file in files
        ],
    )


def write_secrets(files: tuple[SecretFile, ...], service: str | None = None) -> str:
    """Return the program that writes files which only root reads: it alone holds their values.

    With ``service`` it also takes away the keys of that service's deployments that are gone.
    """
    return render(
        "write-secrets.sh.j2",
        root=paths.CREDENTIALS,
        files=[
            {
                "path": file.path,
                "directory": file.path.rsplit("/", 1)[0],
                "sha256": file.sha256,
                "base64": base64.b64encode(file.content.reveal().encode()).decode(),
            }
            for file in files
        ],
        keys=paths.key_files(service) if service else "",
        deployments=paths.deployments_of(service) if service else "",
    )


def remove_hub_token() -> str:
    """Return the program that takes the hub token away from a node."""
    names = (paths.HUB_TOKEN, paths.HUB_TOKEN_MARK)
    return f"rm -f -- {' '.join(paths.credential(name) for name in names)}\n"


def pull(image: str) -> str:
    """Return the program that fetches an image by digest where it is not there yet."""
    return render("pull.sh.j2", image=image)


def fetch_job(plan: ServicePlan) -> dict[str, object]:
    """Return what the program that fetches weights is told."""
    assert plan.launch is not None
    assert plan.weights is not None
    weights = plan.weights
    return {
        "repo": weights.repo,
        "commit": weights.commit,
        "home": weights.home,
        "marker": weights.mark,
        "parallel": plan.launch.wishes.hub.parallel,
        "files": [[one.path, one.size_bytes, one.sha256, one.git_blob] for one in weights.files],
    }


def check_job(plan: ServicePlan) -> dict[str, object]:
    """Return what the program that checks weights is told."""
    assert plan.launch is not None
    weights = plan.weights
    directory = weights.directory if weights else plan.launch.service.model
    files = [[one.path, one.size_bytes] for one in weights.files] if weights else None
    return {"directory": directory, "files": files}


def fetch_weights(plan: ServicePlan) -> str:
    """Return the program that fetches a hub model's files and checks what came."""
    assert plan.launch is not None
    assert plan.weights is not None
    hub, weights, service = plan.launch.wishes.hub, plan.weights, plan.launch.service
    return _weights(
        "fetch_weights.py",
        service,
        plan.launch.image,
        arguments.fetch_arguments(service, weights.home, hub.endpoint),
        fetch_job(plan),
        fetches_into=weights.home,
    )


def check_weights(plan: ServicePlan) -> str:
    """Return the program that checks that the server can read a model whole."""
    launch, weights = plan.launch, plan.weights
    assert launch is not None
    mounts = {weights.home if weights else launch.service.model: False}
    return _weights(
        "check_weights.py",
        launch.service,
        launch.image,
        arguments.check_arguments(launch.service, launch.decision, mounts),
        check_job(plan),
    )


def _weights(
    program: str,
    service: Service,
    image: str,
    words: tuple[str, ...],
    job: dict[str, object],
    fetches_into: str | None = None,
) -> str:
    return render(
        "weights.sh.j2",
        service=service.name,
        container=paths.weights_container(service.name),
        image=image,
        words=words,
        program=base64_lines(_text(program)),
        job=base64_lines(json.dumps(job)),
        fetches_into=fetches_into,
        token=paths.credential(paths.HUB_TOKEN),
        proxies=arguments.PROXIES,
    )


def canary(plan: ServicePlan) -> str:
    """Return the program that tries a plan's image with the flags of its unit."""
    assert plan.launch is not None
    launch = plan.launch
    deployment = paths.Deployment(plan.name, plan.number)
    mounts = {deployment.directory: False, **container_paths(launch)}
    used = [f"{'write' if writable else 'read'}:{path}" for path, writable in mounts.items()]
    return render(
        "canary.sh.j2",
        room=room_text(),
        refusal_mark=REFUSAL_MARK,
        own_directories=_text("own-directories.sh"),
        unit=paths.unit_of(plan.name),
        image=launch.image,
        container=paths.canary_of(plan.name),
        caches=launch.wishes.paths.caches,
        cache_directory=launch.cache_directory,
        weights=None if launch.service.is_local else launch.wishes.paths.weights,
        limit=CANARY_LIMIT,
        arguments=arguments.container_arguments(
            launch.service, launch.decision, deployment, mounts
        ),
        words=["cuda" if uses_cuda(launch) else "cpu", *used],
        script=_text("canary.py").rstrip("\n"),
        directory=deployment.directory,
        result=paths.CANARY_JSON,
    )


def switch(plan: ServicePlan) -> str:
    """Return the program that puts a plan's deployment in place and starts it.

    It refuses as STALE_PLAN where the node is not as the plan saw it.
    """
    launch = plan.launch
    assert launch is not None
    return switch_to(
        plan,
        launch.service,
        caches=launch.wishes.paths.caches,
        cache_directory=launch.cache_directory,
        owner=paths.USER if launch.environment else "",
        directories=[] if launch.service.is_local else [launch.wishes.paths.weights],
        switch_links=plan.new_deployment,
    )


def switch_to(
    to: ServicePlan | Back,
    service: Service,
    *,
    caches: str,
    cache_directory: str,
    owner: str,
    directories: list[str],
    switch_links: bool,
) -> str:
    """Return the program that makes a deployment the current one and starts it: the plan's, or an
    earlier one. ``owner`` is the user of its caches, none for root."""
    assert to.guard is not None
    return render(
        "switch.sh.j2",
        service=to.name,
        unit=paths.unit_of(to.name),
        deployments=paths.deployments_of(to.name),
        number=to.number,
        guard=to.guard,
        replaced=[(file, to.guard.sums[file.path]) for file in to.replaced],
        removed=[(path, to.guard.sums[path]) for path in to.removed],
        meeting=_meeting(service),
        own_directories=_text("own-directories.sh"),
        caches=caches,
        cache_directory=cache_directory,
        owner=owner,
        directories=directories,
        switch_links=switch_links,
        daemon_reload=to.daemon_reload,
        reenable=to.other_runtime,
        enable=to.enable,
        stop_first=to.stop_first,
        act=to.act,
        refusal_mark=REFUSAL_MARK,
        watch=_text("watch.sh"),
        door=_text("door.sh"),
        links=_text("links.sh"),
        room=room_text(),
        back=paths.BACK if isinstance(to, Back) else "",
    )


def _meeting(service: Service) -> tuple[str, ...]:
    """Return the listeners, as ss prints them, that keep a service from its port; none: all do."""
    if ipaddress.ip_address(service.address).is_unspecified:
        return ()
    addresses = (arguments.bracketed(service.address), "*", "0.0.0.0", "[::]")
    return tuple(f"{one}:{service.port}" for one in addresses)


def control(verb: str, service: str) -> str:
    """Return the program that restarts or stops a service and says what it waited for."""
    return render(
        "control.sh.j2",
        verb=verb,
        service=service,
        unit=paths.unit_of(service),
        container=paths.container_of(service),
        watch=_text("watch.sh"),
        door=_text("door.sh"),
    )


def verify(service: Service, release: str, number: int) -> str:
    """Return the program that asks for one generation; ``plans.verification`` judges it."""
    return render(
        "verify.sh.j2",
        unit=paths.unit_of(service.name),
        service=service.name,
        door=_text("door.sh"),
        directory=paths.Deployment(service.name, number).directory,
        base=f"http://{arguments.probe_host(service)}:{service.port}",
        ready_path=ready_path_of(service, release),
        # A rank that is not 0 answers nobody.
        tries=[]
        if service.follows
        else [(one.path, file) for one, file in zip(probes(service), PROBE_FILES, strict=False)],
        half=half_of(service),
        pair_limit=PAIR_LIMIT_S,
        http=_text("http.sh"),
        generation=_text("generation.sh"),
    )


def write_record(service: str, number: int, record: str) -> str:
    """Return the program that writes ``record.json`` of a deployment."""
    deployment = paths.Deployment(service, number)
    return render(
        "record.sh.j2",
        directory=deployment.directory,
        path=deployment.file(paths.RECORD_JSON),
        back=deployment.file(paths.BACK),
        record=base64_lines(record),
    )


def end_way_back(service: str, number: int) -> str:
    """Return the program that takes away what says that a way back has not come to its end."""
    return f"rm -f -- {paths.Deployment(service, number).file(paths.BACK)}\n"


@dataclass(frozen=True)
class Take:
    """What a remove takes away too, beside what it always does."""

    weights: bool = False
    records: bool = False
    drop_ins: bool = False
    environments: bool = False


KEPT_MARK = "@kept "
"""Begins the line by which remove names a thing that it leaves: size, path and what it is."""


def remove(services: tuple[str, ...], take: Take, caches: str) -> str:
    """Return the program that takes services away, drained first, and names what it leaves."""
    return render(
        "remove.sh.j2",
        services=services,
        take=take,
        root=paths.DEPLOYMENTS,
        records=paths.RECORDS,
        weights=paths.WEIGHTS,
        caches=caches,
        state=paths.STATE,
        bundles=paths.BUNDLES,
        run=paths.RUN,
        lock=paths.APPLY_LOCK,
        drop_ins="/etc/systemd/system",
        drop_in=paths.DROP_IN_NAME,
        unit_file=paths.UNIT,
        unit_begins=paths.WHEEL_UNIT_BEGINS,
        devices_unit=paths.DEVICES_UNIT,
        environments=paths.ENVIRONMENTS,
        pythons=paths.PYTHONS,
        tools=paths.TOOLS,
        home=paths.HOME,
        user=paths.USER,
        credentials=paths.CREDENTIALS,
        keys=paths.KEYS,
        hub_token=paths.credential(paths.HUB_TOKEN),
        hub_token_mark=paths.credential(paths.HUB_TOKEN_MARK),
        watch=_text("watch.sh"),
    )
