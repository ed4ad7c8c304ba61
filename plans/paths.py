"""Where things are on a node: the one home of every path the toolkit uses there.

The layout and the reasons for it are in the README, "On the node".
"""

from __future__ import annotations

from dataclasses import dataclass

UNIT_NAME = "sglang@.service"
UNIT = "/etc/systemd/system/sglang@.service"
WHEEL_UNIT_TEMPLATE = "sglang-wheel@.service"  # among our templates; on a node it is an instance
WHEEL_UNIT_BEGINS = "# One SGLang server in a Python environment. Written by pyinfra-sglang;"
DEVICES_UNIT_NAME = "sglang-devices.service"
DEVICES_UNIT = f"/etc/systemd/system/{DEVICES_UNIT_NAME}"
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
BUNDLES = f"{STATE}/bundles"
RUN = "/run/sglang"
MAINTENANCE = f"{STATE}/maintenance.json"
APPLY_LOCK = f"{RUN}/apply.lock"
OPT = "/opt/sglang"
ENVIRONMENTS = f"{OPT}/environments"
PYTHONS = f"{OPT}/python"
TOOLS = f"{OPT}/tools"
HOME = f"{STATE}/home"  # of the user of wheel runtimes
USER = "sglang"
PACKAGE_CACHE = f"{CACHES}/uv"
ENVIRONMENT_MARK = "environment.json"
UNIT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

DOOR = "the door"  # as people read it: no service's name has a space
DOOR_UNIT_NAME = "sglang-door.service"
DOOR_UNIT = f"/etc/systemd/system/{DOOR_UNIT_NAME}"
DOOR_RENEW = "sglang-door-renew.service"
DOOR_TIMER = "sglang-door-renew.timer"
DOOR_UNITS = tuple(
    f"/etc/systemd/system/{name}" for name in (DOOR_UNIT_NAME, DOOR_RENEW, DOOR_TIMER)
)
DOORS = f"{STATE}/door"  # one directory for each state of its settings, and the link `current`
DOOR_CREDENTIALS = f"{CREDENTIALS}/door"
DOOR_KEYS = f"{DOOR_CREDENTIALS}/keys"
DOOR_OUT = f"{RUN}/door"  # root's: a file for each server that is out of rotation

SERVER_YAML = "server.yaml"
LAUNCH_ENV = "launch.env"
CONTAINER_ENV = "container.env"
SERVICE_ENV = "service.env"
CONFIG = "config"
CACHE = "cache"
PLAN_JSON = "plan.json"
RECORD_JSON = "record.json"
START_JSON = "start.json"
CANARY_JSON = "canary.json"
AHEAD_JSON = "ahead.json"  # in a build's cache: what was compiled into it before a switch
GATE = "ready-gate"
STOP_GATE = "stop-gate"
LOGGING_JSON = "logging.json"
BACK = "back"  # a link in a deployment that is gone back to: whence, until its record is written

DEPLOYMENT_FILES = (SERVER_YAML, LAUNCH_ENV, CONTAINER_ENV, GATE, STOP_GATE, PLAN_JSON)
"""The files of a deployment that are decided before it starts (the record comes after)."""


def environment(key: str) -> str:
    """Return the directory of an environment of Python packages."""
    return f"{ENVIRONMENTS}/{key}"


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


def wheel_unit(service: str) -> str:
    """Return the unit of a service of the wheel runtime: systemd takes it before the template."""
    return f"/etc/systemd/system/{unit_of(service)}"


def container_of(service: str) -> str:
    """Return the name of a service's container: ``sglang-chat``."""
    return f"sglang-{service}"


def canary_of(service: str) -> str:
    """Return the name of the container that tries an image for a service.

    No service can have a dot in its name, so no service's container is called so.
    """
    return f"sglang-canary.{service}"


def canary_unit(service: str) -> str:
    """Return the unit that tries an environment for a service; no service's own has a dot."""
    return f"sglang-canary.{service}.service"


def canary_work(caches: str, service: str) -> str:
    """Return the directory of a canary's program and empty caches; it is gone at the end."""
    return f"{caches}/.canary.{service}"


AHEAD_BEGINS = "sglang-ahead."
"""Begins the name of what compiles kernels ahead: what a run that was killed left may go on."""


def ahead_of(service: str) -> str:
    """Return the name of what compiles kernels for a service before a switch, a container or a
    unit; no service's own has a dot."""
    return f"{AHEAD_BEGINS}{service}"


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


def hub_blobs(weights: str, repo: str) -> str:
    """Return the directory of a hub model's contents, each under its checksum."""
    return f"{weights}/hub/{hub_cache_of(repo)}/blobs"


def weights_mark(weights: str, repo: str, commit: str) -> str:
    """Return the file that says which files of a hub model were found good, and when."""
    return f"{weights}/sglang/{hub_cache_of(repo)}/{commit}"


def weights_container(service: str) -> str:
    """Return the name of the container that fetches or checks; no service's own has a dot."""
    return f"sglang-weights.{service}"


def weights_unit(service: str) -> str:
    """Return the passing unit that checks weights; no service's own is called so."""
    return f"sglang-weights-{service}.service"


def bundle(sha256: str) -> str:
    """Return the directory where files of a bundle lie until they are in their places."""
    return f"{BUNDLES}/{sha256[:16]}"


BUNDLE_WORK = f"{BUNDLES}/making"
"""The directory in which a bundle is made on a node."""
