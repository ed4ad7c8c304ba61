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
from plans.onnode import REFUSAL_MARK
from plans.plan import ServicePlan
from plans.probe import probes
from plans.secrets import SecretFile
from plans.wishes import Service
from releases.table import get_release, ready_path


def _text(template: str) -> str:
    return (TEMPLATES / template).read_text(encoding="utf-8")


def write_deployment(directory: str, files: tuple[PlannedFile, ...]) -> str:
    """Return the program that writes a deployment directory whole or not at all."""
    return render(
        "write-deployment.sh.j2",
        directory=directory,
        refusal_mark=REFUSAL_MARK,
        files=[
            {
                "name": file.path.rsplit("/", 1)[1],
                "mode": file.mode,
                "sha256": file.sha256,
                "base64": base64.encodebytes(file.text.encode()).decode().rstrip("\n"),
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
        {
            "repo": weights.repo,
            "commit": weights.commit,
            "home": weights.home,
            "marker": weights.mark,
            "parallel": hub.parallel,
            "files": [
                [one.path, one.size_bytes, one.sha256, one.git_blob] for one in weights.files
            ],
        },
        fetches_into=weights.home,
    )


def check_weights(plan: ServicePlan) -> str:
    """Return the program that checks that the server can read a model whole."""
    launch, weights = plan.launch, plan.weights
    assert launch is not None
    directory = weights.directory if weights else launch.service.model
    mounts = {weights.home if weights else directory: False}
    files = [[one.path, one.size_bytes] for one in weights.files] if weights else None
    return _weights(
        "check_weights.py",
        launch.service,
        launch.image,
        arguments.check_arguments(launch.service, launch.decision, mounts),
        {"directory": directory, "files": files},
    )


def _weights(
    program: str,
    service: Service,
    image: str,
    words: tuple[str, ...],
    job: dict[str, object],
    fetches_into: str | None = None,
) -> str:
    def encoded(text: str) -> str:
        return base64.encodebytes(text.encode()).decode().rstrip("\n")

    return render(
        "weights.sh.j2",
        service=service.name,
        container=paths.weights_container(service.name),
        image=image,
        words=words,
        program=encoded(_text(program)),
        job=encoded(json.dumps(job)),
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
    assert plan.guard is not None
    assert plan.launch is not None
    replaced = [file for file in (plan.unit, plan.drop_in) if file is not None]
    return render(
        "switch.sh.j2",
        service=plan.name,
        unit=paths.unit_of(plan.name),
        deployments=paths.deployments_of(plan.name),
        number=plan.number,
        guard=plan.guard,
        replaced=[(file, plan.guard.sums[file.path]) for file in replaced],
        meeting=_meeting(plan.launch.service),
        own_directories=_text("own-directories.sh"),
        caches=plan.launch.wishes.paths.caches,
        cache_directory=plan.launch.cache_directory,
        directories=[] if plan.launch.service.is_local else [plan.launch.wishes.paths.weights],
        switch_links=plan.new_deployment,
        daemon_reload=plan.daemon_reload,
        enable=plan.enable,
        stop_first=plan.stop_first,
        act=plan.act,
        refusal_mark=REFUSAL_MARK,
        watch=_text("watch.sh"),
    )


def _meeting(service: Service) -> tuple[str, ...]:
    """Return the listeners, as ss prints them, that keep a service from its port; none: all do."""
    if ipaddress.ip_address(service.address).is_unspecified:
        return ()
    addresses = (arguments.bracketed(service.address), "*", "0.0.0.0", "[::]")
    return tuple(f"{one}:{service.port}" for one in addresses)


def control(verb: str, service: str) -> str:
    """Return the program that restarts or stops a service and says what it waited for."""
    return render("control.sh.j2", verb=verb, unit=paths.unit_of(service), watch=_text("watch.sh"))


def verify(service: Service, release: str, number: int) -> str:
    """Return the program that asks for one generation; ``plans.verification`` judges it."""
    return render(
        "verify.sh.j2",
        unit=paths.unit_of(service.name),
        directory=paths.Deployment(service.name, number).directory,
        base=f"http://{arguments.probe_host(service)}:{service.port}",
        ready_path=ready_path(get_release(release)),
        tries=[(one.path, file) for one, file in zip(probes(service), PROBE_FILES, strict=False)],
        http=_text("http.sh"),
    )


def write_record(service: str, number: int, record: str) -> str:
    """Return the program that writes ``record.json`` of a deployment."""
    path = paths.Deployment(service, number).file(paths.RECORD_JSON)
    return (
        "set -eu\numask 022\n"
        f"base64 -d > {path}.new <<'EOT'\n"
        f"{base64.encodebytes(record.encode()).decode()}EOT\n"
        f"mv -fT {path}.new {path}\n"
    )


@dataclass(frozen=True)
class Take:
    """What a remove takes away too, beside what it always does."""

    weights: bool = False
    records: bool = False
    drop_ins: bool = False


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
        run=paths.RUN,
        lock=paths.APPLY_LOCK,
        drop_ins="/etc/systemd/system",
        drop_in=paths.DROP_IN_NAME,
        unit_file=paths.UNIT,
        credentials=paths.CREDENTIALS,
        keys=paths.KEYS,
        hub_token=paths.credential(paths.HUB_TOKEN),
        hub_token_mark=paths.credential(paths.HUB_TOKEN_MARK),
        watch=_text("watch.sh"),
    )
