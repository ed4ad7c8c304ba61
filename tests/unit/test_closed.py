"""A service is closed by default, and the plan says what opens it."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from facts.records import ABSENT, Listener, Unknown
from plans import paths
from plans.deployment import TEMPLATES
from plans.network import scheduler_port
from plans.plan import NodePlan
from plans.wishes import Wishes
from tests.unit import readers
from tests.unit.deployments import CAP, applied, codes, fresh, one, plan
from tests.unit.surveys import wish, wishes

HOST = CAP | {"network": "host"}


def words(made: NodePlan) -> list[str]:
    """Return the words that docker run gets."""
    launch = next(f.text for f in one(made).files if f.path.endswith(paths.LAUNCH_ENV))
    return list(readers.split_words(readers.environment_file(launch)["SGLANG_DOCKER_ARGUMENTS"]))


def cautions(made: NodePlan) -> list[str]:
    return [caution.code for caution in made.cautions]


def server(made: NodePlan) -> Any:
    launch = one(made).launch
    assert launch is not None, made.refusals
    return launch.server


def two(**second: Any) -> Wishes:
    """Return two services on one node, the first on the host's network."""
    base = wishes(HOST).services[0].model_dump()
    return Wishes.model_validate(
        {"services": [{**base, "gpus": [0]}, {**base, "name": "b", "port": 30001, **second}]}
    )


def test_a_container_gets_no_rights_a_read_only_root_and_memory_of_its_own() -> None:
    given = words(plan())
    for word in (
        "--security-opt=no-new-privileges",
        "--cap-drop=ALL",
        "--read-only",
        "--tmpfs=/tmp:exec,mode=1777",
        "--ipc=private",
        "--network=bridge",
        "--publish=127.0.0.1:30000:30000",
    ):
        assert word in given
    assert not [word for word in given if word.startswith(("--cap-add", "--privileged", "--pid"))]
    assert cautions(plan()) == []
    assert "nccl-port" not in server(plan())


def test_a_writable_root_is_a_wish_that_the_plan_names() -> None:
    made = plan(wanted=wishes(CAP | {"read_only": False}))
    assert "--read-only" not in words(made)
    assert not [word for word in words(made) if word.startswith("--tmpfs")]
    assert cautions(made) == ["WRITABLE_ROOT"]


def test_on_the_host_s_network_the_server_itself_keeps_to_its_address() -> None:
    made = plan(wanted=wishes(HOST))
    assert server(made)["host"] == "127.0.0.1"
    assert server(made)["nccl-port"] == 22000
    assert "--network=host" in words(made)
    assert not [word for word in words(made) if word.startswith("--publish")]
    assert cautions(made) == ["HOST_NETWORK"]
    assert "port 22000" in made.cautions[0].text
    # Where ufw does hold, nothing else is said.
    opened = plan(wanted=wishes(HOST | {"address": "0.0.0.0"}))
    assert server(opened)["host"] == "0.0.0.0"
    (text,) = [one.text for one in opened.cautions if one.code == "OPEN_WITHOUT_KEY"]
    assert "ufw" not in text


@pytest.mark.parametrize("flag", ["nccl-port", "nccl_port", "--nccl-port"])
def test_the_operator_may_choose_the_scheduler_s_port(flag: str) -> None:
    made = plan(wanted=wishes(HOST | {"arguments": {flag: 25000}}))
    assert server(made)["nccl-port"] == 25000
    assert "port 25000" in made.cautions[0].text


@pytest.mark.parametrize("port", [1024, 22000, 29999, 30000, 30001, 65535])
def test_a_scheduler_s_port_is_where_sglang_itself_would_take_one(port: int) -> None:
    service, _ = wish({"network": "host", "port": port})
    assert 22000 <= scheduler_port(service) <= 29999
    assert scheduler_port(service) != port


def test_services_side_by_side_get_ports_of_their_own() -> None:
    assert "PORT_TAKEN" not in codes(plan(wanted=two(network="host")))
    taken = plan(wanted=two(port=22000, network="bridge"))
    assert "PORT_TAKEN" in codes(taken)
    assert "b has port 22000" in next(r.seen for r in taken.refusals if r.code == "PORT_TAKEN")
    same = plan(wanted=two(network="host", arguments={"nccl-port": 22000}))
    assert codes(same).count("PORT_TAKEN") == 2


def test_a_scheduler_s_port_that_another_program_has_is_refused_and_our_own_is_not() -> None:
    listener = Listener("::", 22000, 77, "other")
    made = plan(replace(fresh(), listeners=(listener,)), wishes(HOST))
    assert codes(made) == ["PORT_TAKEN"]
    assert "other listens on :: port 22000" in made.refusals[0].seen
    there = applied(plan(wanted=wishes(HOST)))
    state = there.services["chat"]
    launch = {**state.launch, "SGLANG_SCHEDULER_PORT": "22000"}
    ours = replace(
        there,
        listeners=(replace(listener, process="sglang::schedul"),),
        services={"chat": replace(state, launch=launch)},
    )
    assert plan(ours, wishes(HOST)).converged


def test_replicas_cannot_share_the_one_port_that_is_pinned() -> None:
    made = plan(wanted=wishes(HOST | {"arguments": {"dp-size": 2}}))
    assert "HOST_NETWORK_REPLICAS" in codes(made)
    made = plan(wanted=wishes(CAP | {"arguments": {"dp-size": 2}}))
    assert "HOST_NETWORK_REPLICAS" not in codes(made)


@pytest.mark.parametrize("unknown", [ABSENT, Unknown("unreadable", "ss: killed")])
def test_ports_that_could_not_be_looked_at_are_not_taken_for_free(unknown: Unknown) -> None:
    made = plan(replace(fresh(), listeners=unknown))
    assert cautions(made) == ["PORT_UNKNOWN"]
    assert made.refusals == ()


# --- directories from which code is loaded


def own(folder: Path, shell: list[str], owner: str) -> subprocess.CompletedProcess[str]:
    """Run the check of directories, where stat says ``owner`` of the cache."""
    program = (
        'refuse() { echo "@refused $1 $2"; exit 75; }\n'
        f"{(TEMPLATES / 'own-directories.sh').read_text(encoding='utf-8')}\n"
        f"stat() {{ case $4 in */build) echo '0 700' ;; *) echo '{owner}' ;; esac; }}\n"
        f"own {folder}/caches {folder}/caches/build\n"
    )
    return subprocess.run(shell, input=program, capture_output=True, text=True, check=False)


SHELLS = [["dash"], ["bash", "--posix"], ["busybox", "sh"]]


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: str(shell[0]))
def test_a_directory_of_root_s_is_made_and_used_again(tmp_path: Path, shell: list[str]) -> None:
    for _ in range(2):
        done = own(tmp_path, shell, "0 755")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    build = tmp_path / "caches/build"
    assert build.stat().st_mode & 0o777 == 0o700
    assert (build / "home").is_dir()
    assert (tmp_path / "caches").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: str(shell[0]))
@pytest.mark.parametrize(
    ("owner", "said"),
    [
        ("1000 755", "belongs to user 1000"),
        ("1000 777", "belongs to user 1000"),
        ("0 775", "may be written by others (mode 775)"),
        ("0 757", "may be written by others (mode 757)"),
        ("0 1777", "may be written by others (mode 1777)"),
        ("0 2775", "may be written by others (mode 2775)"),
    ],
)
def test_a_directory_that_others_may_change_is_refused(
    tmp_path: Path, shell: list[str], owner: str, said: str
) -> None:
    done = own(tmp_path, shell, owner)
    assert done.returncode == 75
    assert done.stdout.startswith("@refused CACHE_NOT_OURS ")
    assert said in done.stdout
    assert "go-w" in done.stdout
    assert not (tmp_path / "caches/build").exists()
