"""What the plan says of drift that it does not mend: refused where the service is not ours
any more, else a caution. Nothing an operator did is undone without their word."""

from __future__ import annotations

from facts.records import ServiceState, Survey, known
from plans import drift, paths
from plans.findings import Findings
from plans.refusals import Caution
from plans.wishes import Service


def check_drift(service: Service, survey: Survey, state: ServiceState, found: Findings) -> None:
    """Add the refusals and cautions for what somebody else did to a service."""
    name, unit = service.name, paths.unit_of(service.name)
    path = drift.overriding_unit(survey, state)
    if path is not None:
        found.refuse(
            "UNIT_OVERRIDDEN",
            name,
            f"{path} stands in the place of {paths.UNIT}",
            "the toolkit's unit; changes of yours as a drop-in",
            f"keep what you need as a drop-in (systemctl edit {unit}), then: "
            f"rm {path} && systemctl daemon-reload",
        )
    for drop_in, what in drift.overrides(state).items():
        found.cautions.append(Caution("DROP_IN_OVERRIDES", f"{drop_in} {what}", name))
    taker = drift.port_taken_over(survey, state)
    if taker is not None and str(service.port) == state.launch.get("SGLANG_PORT"):
        pid = f" (pid {taker.pid})" if known(taker.pid) else ""
        found.refuse(
            "PORT_TAKEN",
            name,
            f"{taker.process}{pid} listens on {taker.address} port {taker.port} while {unit} is "
            f"{state.active_state}",
            f"port {service.port} free for {name}",
            f"give {name} another port, or stop that process: ss -ltnp 'sport = :{service.port}'",
        )
    stopped = drift.container_stopped(survey, state)
    if stopped is not None:
        container = paths.container_of(name)
        way = f"docker unpause {container}" if stopped.endswith("paused") else "docker ps -a"
        found.cautions.append(Caution("CONTAINER_STOPPED", f"{stopped}: {way}", name))
