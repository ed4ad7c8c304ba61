"""Where things are on a node: the one home of every path the toolkit uses there.

The layout and the reasons for it are in the README, "On the node".
"""

from __future__ import annotations

from dataclasses import dataclass

UNIT_NAME = "sglang@.service"
UNIT = "/etc/systemd/system/sglang@.service"
DROP_IN_NAME = "10-toolkit.conf"
STATE = "/var/lib/sglang"
DEPLOYMENTS = f"{STATE}/deployments"
RECORDS = f"{STATE}/records"
WEIGHTS = f"{STATE}/hub"
CACHES = "/var/cache/sglang"
CREDENTIALS = "/etc/sglang/credentials"
KEYS = f"{CREDENTIALS}/services"
HUB_TOKEN = "hub-token"
HUB_TOKEN_MARK = "hub-token.mark"  # tells whether it changed; the token's checksum stays there
RUN = "/run/sglang"
APPLY_LOCK = f"{RUN}/apply.lock"

SERVER_YAML = "server.yaml"
LAUNCH_ENV = "launch.env"
CONTAINER_ENV = "container.env"
PLAN_JSON = "plan.json"
RECORD_JSON = "record.json"
CANARY_JSON = "canary.json"
GATE = "ready-gate"
LOGGING_JSON = "logging.json"

DEPLOYMENT_FILES = (SERVER_YAML, LAUNCH_ENV, CONTAINER_ENV, GATE, PLAN_JSON)
"""The files of a deployment that are decided before it starts (the record comes after)."""


def credential(name: str) -> str:
    """Return the path of a credential of the node, which only root reads."""
    return f"{CREDENTIALS}/{name}"


def key_files(service: str) -> str:
    """Return the directory of the configurations that hold the keys of a service."""
    return f"{KEYS}/{service}"


def key_file(service: str, number: int) -> str:
    """Return the configuration, with its keys, of one deployment of a service."""
    return f"{key_files(service)}/{number}.yaml"


def unit_of(service: str) -> str:
    """Return the systemd unit of a service: ``sglang@chat.service``."""
    return f"sglang@{service}.service"


def container_of(service: str) -> str:
    """Return the name of a service's container: ``sglang-chat``."""
    return f"sglang-{service}"


def canary_of(service: str) -> str:
    """Return the name of the container that tries an image for a service.

    No service can have a dot in its name, so no service's container is called so.
    """
    return f"sglang-canary.{service}"


def slice_of(service: str) -> str:
    """Return the systemd slice that holds a service's container."""
    return f"sglang-{service}.slice"


def drop_in_dir(service: str) -> str:
    """Return the directory of a service's drop-ins."""
    return f"/etc/systemd/system/{unit_of(service)}.d"


def drop_in(service: str) -> str:
    """Return the one drop-in of a service that is the toolkit's."""
    return f"{drop_in_dir(service)}/{DROP_IN_NAME}"


@dataclass(frozen=True)
class Deployment:
    """The directory of one deployment of one service."""

    service: str
    number: int

    @property
    def directory(self) -> str:
        """Its path: ``/var/lib/sglang/deployments/chat/7``."""
        return f"{deployments_of(self.service)}/{self.number}"

    def file(self, name: str) -> str:
        """Return the path of one of its files."""
        return f"{self.directory}/{name}"


def deployments_of(service: str) -> str:
    """Return the directory that holds all deployments of a service and its links."""
    return f"{DEPLOYMENTS}/{service}"


def current(service: str) -> str:
    """Return the link to the deployment that the unit starts from."""
    return f"{deployments_of(service)}/current"


def previous(service: str) -> str:
    """Return the link to the deployment before it."""
    return f"{deployments_of(service)}/previous"


def hub_cache_of(repo: str) -> str:
    """Return the name by which the hub's cache has a model: ``models--Qwen--Qwen3-8B``."""
    return f"models--{repo.replace('/', '--')}"


def snapshot(weights: str, repo: str, commit: str) -> str:
    """Return the directory of a hub model's files, where its weights lie in ``weights``."""
    return f"{weights}/hub/{hub_cache_of(repo)}/snapshots/{commit}"


def weights_mark(weights: str, repo: str, commit: str) -> str:
    """Return the file that says which files of a hub model were found good, and when."""
    return f"{weights}/sglang/{hub_cache_of(repo)}/{commit}"


def weights_container(service: str) -> str:
    """Return the name of the container that fetches or checks; no service's own has a dot."""
    return f"sglang-weights.{service}"
