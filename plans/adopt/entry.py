"""Makes an inventory's service of a server that was found."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any

from locks.references import is_hub_name, is_revision
from plans.adopt.data import adopt_data
from plans.adopt.files import Files
from plans.adopt.flags import read_flags
from plans.adopt.masked import masked, put_aside, secrets_among
from plans.adopt.records import Container, Entry, Found, Note
from plans.adopt.release import Runs, of_older, runs
from plans.adopt.sizes import as_docker
from plans.adopt.which_gpus import which_gpus
from plans.checks import OURS
from plans.names import absolute
from plans.renames import rewritten
from plans.wishes import DEFAULT_OUTPUT_CAP, SERVICE_NAME, Limits
from releases.table import flag_problems

DEFAULT_PORT = 30000


def entry_of(found: Found, *, alone: bool = True) -> Entry:
    """Return the entry of one server. ``alone``: no other one runs on its node."""
    return _Reading(found, alone).entry()


class _Reading:
    """One server on its way into an inventory."""

    def __init__(self, found: Found, alone: bool) -> None:
        self.found = found
        self.alone = alone
        self.lost: list[Note] = [*found.lost, *found.command.lost]
        self.differs: list[str] = []
        self.container: Container | None = found.container
        self.runs: Runs = runs(found)
        self.lost += self.runs.lost
        self.differs += self.runs.differs
        if self.container:
            self.lost += self.container.lost
        self.files = Files(self.container, found.directory, found.home)

    def entry(self) -> Entry:
        found = self.found
        environment = self._given_environment()
        secrets = secrets_among(found.command.words, environment)
        read = read_flags(found.command.words, self.runs.release)
        self.lost += read.lost
        aside = put_aside(found.where, read.arguments, environment)
        arguments = self._current_names(aside.arguments)
        service: dict[str, Any] = {"name": name_of(found, arguments)}
        service |= self._model(arguments)
        service |= {k: v for k, v in self._addresses(arguments).items() if v is not None}
        service["tp_size"] = _count(arguments.pop("tp-size", 1))
        gpus = which_gpus(
            self.container, aside.environment, arguments, service["tp_size"], self.alone
        )
        service["gpus"] = gpus.chosen
        self.lost += gpus.lost
        node: dict[str, Any] = dict(aside.node)
        node |= self._weights(service, arguments, aside.environment)
        self._ranks(arguments)
        service["arguments"] = self._arguments(arguments)
        service["environment"] = self._environment(aside.environment)
        service["output_cap"] = self._output_cap(aside.environment, str(service.get("kind")))
        service |= aside.service
        service |= self._of_container()
        service |= self.runs.service
        name = str(service["name"])
        return Entry(
            found=found,
            service=_ordered(service),
            node=node,
            lost=tuple(
                Note(masked(one.what, secrets), masked(one.why.replace("{name}", name), secrets))
                for one in dict.fromkeys(self.lost)
            ),
            differs=tuple(masked(one, secrets) for one in dict.fromkeys(self.differs)),
            secrets=tuple(masked(one, secrets) for one in aside.said),
        )

    def _given_environment(self) -> dict[str, str]:
        given = dict(self.container.environment) if self.container else {}
        own: Mapping[str, str] = self.found.environment
        if self.found.kind == "process":
            # All else is of the shell that it was started from.
            begins = adopt_data().server_variables
            own = {name: value for name, value in own.items() if name.startswith(begins)}
        return {**given, **own, **self.found.command.environment}

    def _current_names(self, arguments: dict[str, Any]) -> dict[str, Any]:
        arguments, before = of_older(self.runs.release, arguments)
        new, renamed, twice = rewritten(self.runs.release, arguments)
        renamed = [*before, *renamed]
        self.differs += [one.text.replace("server.yaml has", "the entry has") for one in renamed]
        self.lost += [Note(one, "keep one of them in arguments") for one in twice]
        kept = dict(new)
        for problem in flag_problems(self.runs.release, new):
            if problem.severity == "refuse" and problem.kind in ("unknown", "value", "deprecated"):
                kept.pop(problem.flag, None)
                told = f"; instead: {problem.suggestion}" if problem.suggestion else ""
                why = f"{problem.message.removeprefix(f'--{problem.flag} ')}{told}"
                self.lost.append(Note(f"--{problem.flag}", why))
        return kept

    # --- the keys of a service

    def _model(self, arguments: dict[str, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        model = arguments.pop("model-path", None)
        text = "" if model is None else str(model)
        if not text:
            self.lost.append(Note("no --model-path", "name the model in the entry"))
        elif is_hub_name(text) and not text.startswith(("/", ".", "~")):
            out["model"] = text
        else:
            here, seen = self.files.on_node(text)
            try:
                out["model"] = absolute(here)
                if not seen:
                    why = "it lies inside the image, where the service's container does not look"
                    self.lost.append(Note(f"model {text}", f"{why}: copy it to the node"))
            except ValueError as error:
                self.lost.append(Note(f"model {text}", str(error)))
        revision = arguments.pop("revision", None)
        if revision is not None and "model" in out and not out["model"].startswith("/"):
            if is_revision(str(revision)):
                out["revision"] = str(revision)
            else:
                self.lost.append(Note(f"--revision {revision}", "no hub has such a revision"))
        served = arguments.pop("served-model-name", None)
        if served is not None:
            name = str(served)
            if name.strip() and name.isprintable() and ":" not in name:
                out["served_name"] = name
            else:
                self.lost.append(Note(f"--served-model-name {name!r}", "write a plain name"))
        elif text and out.get("model") not in (None, text):
            # Clients ask for the model by the path it had inside the container.
            out["served_name"] = text
        if arguments.pop("is-embedding", False):
            out["kind"] = "embed"
            self.differs.append(
                "--is-embedding is kind 'embed'; write 'rerank' where clients ask /v1/rerank"
            )
        for flag in ("enable-metrics", "config", "model-type"):
            if flag in arguments:
                value = arguments.pop(flag)
                if flag == "config":
                    why = "the toolkit writes that file itself: put its keys into arguments"
                    self.lost.append(Note(f"--config {value}", why))
        return out

    def _addresses(self, arguments: dict[str, Any]) -> dict[str, Any]:
        inside = _count(arguments.pop("port", DEFAULT_PORT))
        host = str(arguments.pop("host", "127.0.0.1"))
        port, address = inside, self._address(host)
        network = None
        container = self.container
        if container and container.network == "host":
            if container.rdma or _count(arguments.get("nnodes", 1)) > 1:
                network = "host"
            else:
                self.differs.append(
                    "the container was on the node's own network; the service's port is published "
                    "instead (for RDMA write network: 'host', explain HOST_NETWORK)"
                )
        elif container:
            published = [one for one in container.ports if one.inside == inside]
            if published:
                port, address = published[0].outside, published[0].address or "0.0.0.0"
                address = self._address(address)
            else:
                address = "127.0.0.1"
                self.differs.append(
                    f"no port of the node led to port {inside} of the container: the service "
                    "listens on the node's loopback"
                )
            if container.network not in ("bridge", "default"):
                why = "other containers there reach the service by the node's address instead"
                self.lost.append(Note(f"network {container.network}", why))
            for one in container.ports:
                if one.inside != inside:
                    why = "a service has one port"
                    self.lost.append(Note(f"published port {one.outside}:{one.inside}", why))
        if port < 1024:
            self.lost.append(
                Note(f"port {port}", "a service has one of 1024 and above; put a proxy before it")
            )
            port = DEFAULT_PORT
        return {"port": port, "address": address, "network": network}

    def _ranks(self, arguments: dict[str, Any]) -> None:
        nodes, rank = _count(arguments.pop("nnodes", 1)), arguments.pop("node-rank", 0)
        if nodes > 1:
            why = (
                f"write nodes in the entry: the names of all {nodes}, rank 0's first (this one was rank "
                f"{rank}), and the same entry for each of them"
            )
            self.lost.append(Note(f"--nnodes {nodes}", why))

    def _address(self, text: str) -> str:
        bare = {"localhost": "127.0.0.1"}.get(text, text.strip("[]"))
        try:
            return str(ipaddress.ip_address(bare))
        except ValueError:
            why = "a service listens on an IP address: write it; the entry has loopback"
            self.lost.append(Note(f"address {text}", why))
            return "127.0.0.1"

    def _weights(
        self,
        service: Mapping[str, Any],
        arguments: Mapping[str, Any],
        environment: Mapping[str, str],
    ) -> dict[str, Any]:
        if str(service.get("model", "/")).startswith("/"):
            return {}
        place = self.files.weights(environment)
        if place is None:
            return {}
        try:
            path = absolute(place)
        except ValueError as error:
            self.lost.append(Note(f"weights in {place}", str(error)))
            return {}
        self.differs.append(
            f"weights stay in {path} (paths.weights): what is there is not fetched again"
        )
        return {"paths": {"weights": path}}

    def _arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for name, value in arguments.items():
            moved, lost = self.files.argument(name, value)
            if lost is not None:
                self.lost.append(lost)
            else:
                kept[name] = moved
        return kept

    def _environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        data = adopt_data()
        caches = {one.variable for one in self.runs.release.caches}
        kept: dict[str, str] = {}
        for name, value in environment.items():
            if name in data.variables:
                self.lost.append(Note(f"variable {name}", data.variables[name]))
            elif name in OURS or name in caches or not re.fullmatch(r"[A-Za-z_]\w*", name, re.A):
                continue  # the toolkit sets it itself
            elif not all(char.isprintable() or char == "\t" for char in value):
                why = "a variable's value is one line"
                self.lost.append(Note(f"variable {name}", why))
            else:
                kept[name] = value
        return kept

    def _output_cap(self, environment: Mapping[str, str], kind: str) -> int | None:
        given = environment.get("SGLANG_MAX_NEW_TOKENS_LIMIT", "")
        if given.isdigit() and int(given) > 0:
            return int(given)
        if kind == "embed":
            return None
        self.differs.append(
            f"no answer was limited; the entry's output_cap lets one have {DEFAULT_OUTPUT_CAP} "
            "tokens, and a stop's deadline counts on it: write the longest that clients need"
        )
        return DEFAULT_OUTPUT_CAP

    def _of_container(self) -> dict[str, Any]:
        container = self.container
        if container is None:
            return {}
        out: dict[str, Any] = {}
        if container.shm_bytes and container.shm_bytes != 32 * 2**30:
            out["shm_size"] = as_docker(container.shm_bytes)
        own = Limits().model_dump()
        limits = {
            name: value
            for name, value in container.ulimits.items()
            if name in own and value != own[name] and value >= -1
        }
        if limits:
            out["ulimits"] = limits
        for name, value in container.ulimits.items():
            if name not in own:
                why = "the service's limits are memlock, stack and nofile; others go into a drop-in"
                self.lost.append(Note(f"ulimit {name}={value}", why))
        self.lost += self.files.lost_mounts()
        return out


def name_of(found: Found, arguments: Mapping[str, Any]) -> str:
    """Return a name for the service: the old one's, or the model's."""
    model = str(arguments.get("model-path", "")).rstrip("/").rsplit("/", 1)[-1]
    own = "" if found.kind == "process" else found.name.removesuffix(".service")
    for text in (own, model, "sglang"):
        name = re.sub(r"[^a-z0-9]+", "-", text.lower().removeprefix("sglang")).strip("-")[:40]
        if SERVICE_NAME.fullmatch(name.strip("-")):
            return name.strip("-")
    return "sglang"


_ORDER = (
    "name", "model", "revision", "served_name", "kind", "release", "image", "runtime", "port",
    "address", "network", "tp_size", "gpus", "output_cap", "api_key", "admin_api_key", "arguments",
    "environment", "shm_size", "ulimits",
)  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "port": DEFAULT_PORT, "address": "127.0.0.1", "tp_size": 1, "gpus": "all", "arguments": {},
    "environment": {}, "output_cap": None,
}  # fmt: skip


def _ordered(service: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys in the order of inventories/example.py, without those that say a default."""
    return {
        key: service[key]
        for key in _ORDER
        if key in service and (key not in _DEFAULTS or service[key] != _DEFAULTS[key])
    }


def _count(value: Any) -> int:
    try:
        return max(1, int(value))
    except (TypeError, ValueError):
        return 1
