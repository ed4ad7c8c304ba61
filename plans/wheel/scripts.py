"""The programs that make an environment on a node, as text: see ``plans/scripts.py``."""

from __future__ import annotations

import base64
import hashlib
import json

from plans import paths, text
from plans.launch import TEMPLATES, render
from plans.onnode import REFUSAL_MARK
from plans.wheel.environment import PlannedEnvironment
from plans.wheel.tools import uv_path
from plans.wheel.uv import Uv


def _text(template: str) -> str:
    return (TEMPLATES / template).read_text(encoding="utf-8")


def _encoded(content: str) -> str:
    return base64.encodebytes(content.encode()).decode().rstrip("\n")


def prepare(planned: PlannedEnvironment) -> str:
    """Return the program that makes user and directories and installs what is missing."""
    return render(
        "environment-prepare.sh.j2",
        follow=_text("follow.sh"),
        own_directories=_text("own-directories.sh"),
        distribution=_text("distribution.sh"),
        account=planned.account,
        user=paths.USER,
        home=paths.HOME,
        home_parent=paths.STATE,
        directories=[paths.OPT, paths.ENVIRONMENTS, paths.PYTHONS, paths.TOOLS],
        leftovers=[paths.environment(name) for name in planned.leftovers],
        taken_away=[paths.environment(key) for key in planned.taken_away],
        packages=planned.packages,
    )


def brought_tool() -> str:
    """Return where the controller puts uv before it is looked at."""
    return f"{uv_path()}.gz.new"


def put_tool(sha256: str) -> str:
    """Return the program that puts uv in its place; ``sha256`` is of the program itself."""
    return render(
        "environment-tool.sh.j2", brought=brought_tool(), program=uv_path(), sha256=sha256
    )


def build(planned: PlannedEnvironment, bundle: str | None = None) -> str:
    """Return the program that builds an environment beside its place and puts it there.

    ``bundle``: a directory on the node with all wheels; then no network is asked.
    """
    uv = Uv(planned.mirrors, planned.cache, planned.pages, bundle)
    job = {
        "refusal_mark": REFUSAL_MARK,
        "user": paths.USER,
        "key": planned.key,
        "release": planned.release,
        "requirements": hashlib.sha256(planned.requirements.encode()).hexdigest(),
        "python": planned.python,
        "cuda": planned.cuda,
        "cuda_home": planned.cuda_home.path if planned.cuda_home else None,
        "least": planned.least,
    }
    return render(
        "environment-build.sh.j2",
        follow=_text("follow.sh"),
        distribution=_text("distribution.sh"),
        cuda_links=_text("cuda-links.sh"),
        directory=planned.directory,
        pythons=paths.PYTHONS,
        environment=uv.environment,
        minor=planned.python,
        python_install=uv.python_install(planned.python),
        python_packages=planned.python_packages,
        venv=uv.venv(),
        install=uv.install(),
        requirements=_encoded(planned.requirements),
        count=planned.count,
        size=text.size(planned.size),
        finish=_encoded(_text("finish_environment.py")),
        job=_encoded(json.dumps(job)),
    )


def repair(planned: PlannedEnvironment) -> str:
    """Return the program that makes the links of an environment's CUDA tree again."""
    return render(
        "environment-repair.sh.j2",
        cuda_links=_text("cuda-links.sh"),
        directory=planned.directory,
    )
