"""A stop that waits for nothing: its loss is told first, and asked for."""

from __future__ import annotations

from pyinfra.api.host import Host

from cli.asking import ask
from cli.context import Run, outcome_document
from deploys.node import survey_of
from facts.look import look
from operations import apply, service
from plans import scripts
from plans.deployed import Deployed, chosen
from plans.loss import loss, open_connections


def stop_now(run: Run, only: tuple[str, ...], yes: bool) -> None:
    """End services at once, after their loss was told and agreed to."""

    def what_is_lost(host: Host) -> tuple[dict[str, Deployed], list[str]] | None:
        found = survey_of(host, None)
        if found is None:
            return None
        meant = chosen(found, only)
        seen = {
            name: open_connections(look(host, scripts.control("look", name), "sglang-look"))
            for name in meant
        }
        return meant, loss(seen)

    def register(host: Host) -> None:
        if host not in found:
            return
        for name, one in found[host][0].items():
            service.ended(name_of_service=name, release=one.release, name=f"End {name}")
        apply.released(name="Give the apply lock back")

    with run.nodes(__file__) as nodes:
        found = run.gather(nodes.prepare(what_is_lost))
        for host, (_, lines) in found.items():
            for line in lines or ["nothing of it runs"]:
                run.err.print(f"{host.name}  {line}", markup=False, soft_wrap=True)
        if found:
            ask("End them at once, and lose that?", "nothing was stopped", "to lose that", yes=yes)
        run.gather(nodes.prepare(register))
        nodes.execute(run.step)
        for host, (_, lines) in found.items():
            document = outcome_document(host.name, run.judged(host))
            run.documents.append({**document, "loss": lines})
    run.finish()
