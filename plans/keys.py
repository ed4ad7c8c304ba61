"""What a key that the server itself holds means for a plan: warnings, the journal, its change."""

from __future__ import annotations

from collections.abc import Iterable

from facts.records import Survey, known
from plans import paths
from plans.findings import Findings
from plans.journal import journal_filter, logging_config
from plans.plan import ServicePlan
from plans.refusals import Caution, Refusal
from plans.secrets import (
    MASK,
    NodeSecrets,
    SecretFile,
    hub_token_files,
    hub_token_is_there,
    is_there,
    key_file,
)
from plans.sources import secret_data
from plans.wishes import Service, Wishes
from releases.schema import Runtime
from releases.table import defects_touched, get_release


def key_checks(
    service: Service,
    release: str,
    survey: Survey,
    found: Findings,
    runtime: Runtime | None = "image",
) -> bool:
    """Say what a key in the server means; return whether the service may have it."""
    if not service.keys:
        return True
    data = secret_data()["journal"]
    flags = " and ".join(service.keys)
    if journal_filter(service, survey.systemd_version) is not None:
        log = "systemd keeps that line out of this node's journal"
    elif logging_config(service, systemd_filters=False) is not None:
        log = (
            "that line is not logged on this node, whose systemd could not keep it out of the "
            "journal; lines of the log do not say of which rank they are"
        )
    else:
        version = survey.systemd_version
        seen = f"systemd {version}" if known(version) else "systemd of a version not known"
        log = (
            f"{seen} cannot keep that line out of the journal (version {data['filter_since']} and "
            f"newer can), which members of the groups {', '.join(data['readers'])} read beside "
            "root: leave root alone in them (getent group), or keep the key at a door before the "
            "service"
        )
    found.cautions.append(
        Caution(
            "KEY_IN_SERVER",
            f"the server holds its {flags}: SGLang gives it away at /server_info to everyone who "
            f"has the key, and prints it in its start log; {log}",
            service.name,
        )
    )
    entry = get_release(release)
    held = {**service.arguments, **dict.fromkeys(service.keys, MASK)}
    without = defects_touched(entry, service.arguments, service.environment, runtime)
    refused = False
    for defect in defects_touched(entry, held, service.environment, runtime):
        if defect in without or defect.severity != "refuse":
            continue
        refused = True
        found.refusals.append(
            Refusal(
                "KNOWN_DEFECT",
                f"SGLang {release}: {defect.what}",
                "keys and arguments that do not meet it",
                defect.workaround,
                service.name,
            )
        )
    return not refused


def unread(wishes: Wishes, secrets: NodeSecrets) -> tuple[str, ...]:
    """Return what of the secrets that are asked for was not read, each in a sentence."""
    if secrets.unread:
        return secrets.unread
    missing = [
        f"services[{service.name}].{flag.replace('-', '_')}: was not read"
        for service in wishes.services
        for flag in service.keys
        if flag not in secrets.keys.get(service.name, {})
    ]
    if wishes.door and len(wishes.door.keys) != len(secrets.keys.get(paths.DOOR, {})):
        missing.append("door.keys: was not read")
    if wishes.secrets.hub_token is not None and secrets.hub_token is None:
        missing.append("secrets.hub_token: was not read")
    return tuple(missing)


def planned_key_file(
    service: Service, number: int, server_yaml: str, secrets: NodeSecrets
) -> SecretFile | None:
    """Return the configuration with the keys of one deployment.

    None where the service has none, or where they could not be read here.
    """
    keys = secrets.keys.get(service.name, {})
    if not service.keys or set(keys) != set(service.keys):
        return None
    return key_file(service.name, number, server_yaml, keys)


def key_change(
    survey: Survey, service: Service, number: int, server_yaml: str, secrets: NodeSecrets
) -> str | None:
    """Return why the keys of the current deployment are not as they should be, or None.

    ``server_yaml`` is the text that the deployment's own file should have. A
    change of that file alone is no change of the keys.
    """
    wanted = planned_key_file(service, number, server_yaml, secrets)
    if wanted is None or is_there(survey, wanted):
        return None
    there = survey.files.get(wanted.path)
    names = " and ".join(service.keys)
    if there is None or not there.exists:
        return f"the {names} is not there yet"
    own = survey.files.get(paths.Deployment(service.name, number).file(paths.SERVER_YAML))
    before = own.text if own is not None and known(own.text) else server_yaml
    if key_file(service.name, number, before, secrets.keys[service.name]).sha256 != there.sha256:
        return f"the {names} changes"
    return None if there.mode == "0600" else f"{wanted.path} is not for root alone"


def hub_token_change(
    survey: Survey, wishes: Wishes, secrets: NodeSecrets, found: Findings
) -> tuple[SecretFile, ...] | None:
    """Plan the hub token of a node: the files to write, () to take it away, None to leave it."""
    path = paths.credential(paths.HUB_TOKEN)
    there = survey.files.get(path)
    exists = there is not None and there.exists
    token = secrets.hub_token
    if token is not None:
        if hub_token_is_there(survey, token):
            return None
        why = "the hub token changes" if exists else "the hub token is not there yet"
        found.change(None, "credential", path, f"{why}; only root will read it")
        return hub_token_files(token)
    if wishes.secrets.hub_token is None and exists:
        found.change(None, "credential", path, "no hub token is asked for: it is taken away")
        return ()
    return None


def same_user(plans: Iterable[ServicePlan]) -> list[Caution]:
    """Return the caution that services of the wheel runtime can read each other's keys.

    They run as one user: who has broken into one reaches what another holds, through /proc.
    """
    wheels = [one for one in plans if one.launch is not None and one.environment is not None]
    keyed = [one.name for one in wheels if one.launch is not None and one.launch.service.keys]
    if len(wheels) < 2 or not keyed:
        return []
    return [
        Caution(
            "KEYS_OF_ONE_USER",
            f"{', '.join(one.name for one in wheels)} run as one user, {paths.USER}: whoever breaks "
            f"into one of them can read the keys of {', '.join(keyed)}; `runtime: image` keeps them "
            "apart",
        )
    ]
