"""The programs that compile kernels on a node before a switch, as text; and what came of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from plans import arguments, paths
from plans.ahead import AHEAD_LIMIT, DEEP_GEMM_LIMIT
from plans.canary import ENDED_MARK, TIMED_OUT, document_of, last, listed, mapping, short
from plans.deployment import TEMPLATES, drop_in_file, render
from plans.launch import Launch
from plans.onnode import base64_lines
from plans.plan import ServicePlan
from plans.server_yaml import command_line
from plans.wheel.launch import is_hidden, wheel_unit_file
from plans.wheel.sandbox import sandbox

RESULT_MARK = "@ahead "

LEFT_MARK = "@left "
"""Begins the line that says why nothing was compiled."""

NONE_MARK = "@none"
"""The line that says that there is nothing to compile."""

SLOW = "the first start compiles what is missing, so its first requests are slower"

QUIETLY = (
    # Of every processor and disk that the server wants, it gets the rest; and where memory runs
    # out it goes first.
    "Nice=19",
    "CPUWeight=1",
    "IOWeight=1",
    "IOSchedulingClass=idle",
    "OOMScoreAdjust=1000",
)
"""How systemd runs what compiles beside a server that serves."""

QUIETLY_IN_DOCKER = ("--cpu-shares=2", "--oom-score-adj=1000")
"""The same for a container; the program itself asks for the rest."""


def flashinfer(plan: ServicePlan) -> str:
    """Return the program that compiles the kernels of FlashInfer which the build before has.

    It never fails for what cannot be compiled; ``came_of`` says what came of it.
    """
    ahead, launch = plan.ahead, plan.launch
    assert ahead is not None
    assert launch is not None
    words = [
        f"build:{launch.build.key}",
        f"before:{ahead.build_before}",
        f"limit:{AHEAD_LIMIT}",
        f"record:{paths.AHEAD_JSON}",
        *(f"for:{one}" for one in ahead.capabilities),
    ]
    program = (TEMPLATES / "ahead.py").read_text(encoding="utf-8")
    return _program(plan, launch, program, words, before=ahead.before, limit=AHEAD_LIMIT)


def deep_gemm(plan: ServicePlan) -> str:
    """Return the program that runs the release's own step for DeepGEMM's kernels: a server of the
    same arguments, on the service's GPUs, that nobody reaches and that ends by itself."""
    launch = plan.launch
    assert launch is not None
    given = {**launch.server, "host": "127.0.0.1"}
    words = [
        "-m",
        "sglang.compile_deep_gemm",
        "--model-path",
        launch.service.model,
        *command_line(given),
        "--timeout",
        str(DEEP_GEMM_LIMIT),
    ]
    return _program(plan, launch, None, words, before="", limit=DEEP_GEMM_LIMIT)


def result(plan: ServicePlan) -> str:
    """Return the program that prints what the last of these came to; ``came_of`` reads it."""
    directory = paths.Deployment(plan.name, plan.number).directory
    return render("ahead-result.sh.j2", service=plan.name, directory=directory)


def _program(
    plan: ServicePlan,
    launch: Launch,
    program: str | None,
    words: list[str],
    *,
    before: str,
    limit: int,
) -> str:
    deployment = paths.Deployment(plan.name, plan.number)
    name = paths.ahead_of(plan.name)
    wheel = launch.environment
    return render(
        "ahead.sh.j2",
        service=plan.name,
        name=name,
        directory=deployment.directory,
        left_mark=LEFT_MARK,
        none_mark=NONE_MARK,
        own_directories=(TEMPLATES / "own-directories.sh").read_text(encoding="utf-8"),
        caches=launch.wishes.paths.caches,
        cache_directory=launch.cache_directory,
        owner=paths.USER if wheel else "",
        before=before,
        run=paths.RUN,
        program=base64_lines(program) if program is not None else "",
        words=words,
        limit=limit,
        python=wheel.python_path if wheel else "python3",
        properties=_properties(plan, launch, limit, alone=program is None) if wheel else (),
        image="" if wheel else launch.image,
        arguments=() if wheel else _container(launch, deployment, alone=program is None),
    )


def _properties(plan: ServicePlan, launch: Launch, limit: int, *, alone: bool) -> tuple[str, ...]:
    """Return what closes the passing unit as the service's own unit is closed; ``alone``: it opens
    the port of the server that still serves, in a network that nobody reaches."""
    cache = launch.cache_directory
    unit = (wheel_unit_file(plan.name).text, drop_in_file(launch).text)
    own = sandbox(plan.name, *unit)
    quietly = tuple(one.partition("=")[0] for one in QUIETLY)
    return (
        *(one for one in own if not one.startswith(quietly)),
        f"EnvironmentFile={paths.Deployment(plan.name, plan.number).file(paths.SERVICE_ENV)}",
        f"ReadWritePaths={cache}",
        *([f"BindPaths={cache}"] if is_hidden(cache) else []),
        f"RuntimeMaxSec={limit}",
        "OOMPolicy=continue",
        *QUIETLY,
        *(["PrivateNetwork=yes"] if alone else []),
    )


def _container(launch: Launch, deployment: paths.Deployment, *, alone: bool) -> tuple[str, ...]:
    """Return what the container gets: what the service's own does, so that it compiles the same."""
    mounts: Mapping[str, bool] = {deployment.directory: False, **launch.read_and_written}
    given = arguments.container_arguments(launch.service, launch.decision, deployment, mounts)
    if alone:
        given = (*(one for one in given if not one.startswith("--network=")), "--network=none")
    return (*given, *QUIETLY_IN_DOCKER)


def came_of(lines: Iterable[str]) -> str | None:
    """Return in one sentence what a program of these left to the first start; None where it left
    nothing, as far as it knows. Never raises for any output."""
    printed = [line for line in lines if line.strip()]
    left, ended = last(printed, LEFT_MARK), last(printed, ENDED_MARK)
    if left is not None:
        return f"no kernels were compiled ahead: {short(left)}"
    document = document_of(last(printed, RESULT_MARK))
    if document is not None:
        return _told(document)
    if ended == "0" or NONE_MARK in printed:
        return None
    said = [line for line in printed if not line.startswith("@")]
    why = "it was cut off" if ended is None else f"it ended with {ended}"
    if ended in [str(one) for one in TIMED_OUT] or "result: timeout" in "\n".join(said):
        why = "it did not end in its time"
    elif said:
        why = f"{why}: {short(said[-1])}"
    return f"kernels were not all compiled ahead, {why}; {SLOW}"


def _told(document: Mapping[str, object]) -> str | None:
    compiled, failed = listed(document.get("compiled")), mapping(document.get("failed"))
    late, unknown = listed(document.get("late")), listed(document.get("not_offered"))
    if not (failed or late or unknown):
        return None
    parts = [f"{_kernels(len(compiled))} of FlashInfer compiled ahead"]
    if failed:
        name, why = next(iter(failed.items()))
        parts.append(f"{len(failed)} failed ({name}: {short(str(why))})")
    if late:
        full = document.get("no_room")
        why = f"for want of room ({short(full)})" if isinstance(full, str) else "in time"
        parts.append(f"{len(late)} not done {why}")
    if unknown:
        parts.append(f"{len(unknown)} not among those that the new FlashInfer offers")
    return "; ".join([*parts, SLOW])


def _kernels(count: int) -> str:
    return f"{count} kernel{'' if count == 1 else 's'}"
