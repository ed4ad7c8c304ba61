"""The programs that try an environment on a node before the switch, as text."""

from __future__ import annotations

import base64

from plans import paths, quoting
from plans.deployment import drop_in_file
from plans.launch import TEMPLATES, render
from plans.plan import ServicePlan
from plans.wheel.canary import STEP_LIMIT, ExpectedWheel, expected_wheel, objects
from plans.wheel.launch import is_hidden, wheel_unit_file
from plans.wheel.sandbox import sandbox
from releases.table import cache_environment, get_release


def canary(plan: ServicePlan, wanted: ExpectedWheel | None = None) -> str:
    """Return the program that tries a plan's environment, closed as its unit closes the server.

    ``wanted`` replaces what the plan itself expects.
    """
    launch, wanted = plan.launch, wanted or expected_wheel(plan)
    assert launch is not None
    assert launch.environment is not None
    deployment = paths.Deployment(plan.name, plan.number)
    work = paths.canary_work(launch.wishes.paths.caches, plan.name)
    release = get_release(launch.decision.release or "")
    variables = {
        **cache_environment(release, f"{work}/cache", launch.wishes.paths.weights),
        "HOME": f"{work}/cache/home",
        # What compilers say is read.
        "LC_ALL": "C.UTF-8",
        "LANGUAGE": "",
    }
    used = [
        f"{'write' if writable else 'read'}:{path}"
        for path, writable in launch.read_and_written.items()
        if path != launch.cache_directory
    ]
    unit = (wheel_unit_file(plan.name).text, drop_in_file(launch).text)
    return render(
        "wheel-canary.sh.j2",
        service=plan.name,
        unit=paths.unit_of(plan.name),
        transient=paths.canary_unit(plan.name),
        environment=wanted.directory,
        user=paths.USER,
        caches=launch.wishes.paths.caches,
        work=work,
        directory=deployment.directory,
        shared=_encoded((TEMPLATES / "canary.py").read_text(encoding="utf-8")),
        program=_encoded((TEMPLATES / "wheel_canary.py").read_text(encoding="utf-8")),
        variables=_encoded(quoting.environment_file(variables)),
        limit=wanted.limit,
        properties=(
            *sandbox(plan.name, *unit),
            f"EnvironmentFile={deployment.file(paths.SERVICE_ENV)}",
            # The later file wins.
            f"EnvironmentFile={work}/canary.env",
            f"ReadWritePaths={work}/cache",
            # Where the unit's ProtectHome= hides them: its program, and the caches in it.
            *([f"BindPaths={work}"] if is_hidden(work) else []),
            f"RuntimeMaxSec={wanted.limit}",
            # One compiler that is killed for its memory is named; the canary goes on.
            "OOMPolicy=continue",
            # Whatever served before still serves.
            "Nice=10",
        ),
        python=f"{wanted.directory}/bin/python3",
        words=[
            "cuda" if wanted.cuda else "cpu",
            *(f"compile:{one}" for one in wanted.compiles_for),
            *(f"objects:{one}" for one in objects()),
            f"limit:{STEP_LIMIT}",
            *used,
        ],
    )


def canary_result(plan: ServicePlan) -> str:
    """Return the program that prints what the other found, and keeps it as ``canary.json``."""
    return render(
        "wheel-canary-result.sh.j2",
        service=plan.name,
        directory=paths.Deployment(plan.name, plan.number).directory,
        result=paths.CANARY_JSON,
    )


def _encoded(text: str) -> str:
    return base64.encodebytes(text.encode()).decode().rstrip("\n")
