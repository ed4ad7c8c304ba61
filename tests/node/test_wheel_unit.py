"""The unit of the wheel runtime: the real SGLang under it, as user sglang, closed, with a key.

The environment is the harness's own, put where the toolkit would have built it; everything
else is the plan's: its programs write the deployment and switch to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from deploys.node import request_for
from facts.parsing import parse_survey
from facts.records import Survey
from facts.survey import survey_command
from plans import paths, scripts
from plans.plan import ServicePlan
from plans.secrets import NodeSecrets, Secret
from plans.verification import judge
from plans.wheel import weights
from plans.wheel.launch import devices_unit_file, wheel_unit_file
from plans.wishes import Wishes, read_wishes
from tests.unit.deployments import kinds, one
from tests.unit.wheels import environment, wheel_plan

from .harness import sglang_cpu
from .harness.gpus import play_gpus
from .harness.lab import MODEL, Lab
from .harness.machine import Node
from .harness.trees import tree
from .site import service, show, stream

UNIT = "sglang@chat.service"
TOKENS = 3000
KEY = "k7" * 16
SECRETS = NodeSecrets(keys={"chat": {"api-key": Secret(KEY)}})
ENVIRONMENT = environment(cuda_home=None, python="3.11", release="0.5.22")
HEADERS = "/root/headers"


def wanted() -> Wishes:
    """What the operator wants: the tiny model, with a key, and no other runtime."""
    one_service = service(
        api_key={"env": "CHAT_KEY"},
        runtime="wheel",
        environment={"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"},
    )
    return read_wishes({"services": [one_service]}, "wheel")


def survey_of(node: Node) -> Survey:
    """The survey of a node, as a run reads it."""
    program = survey_command(request_for(wanted())).get_raw_value()
    return parse_survey(node.run("sh -s", text=program).stdout.splitlines(), "wheel")


@dataclass
class Served:
    """A node that serves, and the plan that it was made to."""

    node: Node
    plan: ServicePlan
    said: str


@pytest.fixture(scope="module")
def served(lab: Lab) -> Iterator[Served]:
    """A Debian 12 host on which a plan of the wheel runtime was switched to."""
    binds = {
        sglang_cpu.environment(lab.cache): "/srv/sglang/base",
        sglang_cpu.server(lab.cache, "0.5.22"): "/srv/sglang/version",
        sglang_cpu.model(lab.cache): MODEL,
    }
    node = Node.create(lab.stage, "wheel", tree(lab.cache, "bookworm"), binds=binds)
    play_gpus(node, "one_l4_580")
    node.boot()
    directory = ENVIRONMENT.directory
    node.run(
        f"mkdir -p {directory} && mount -t overlay overlay "
        f"-o lowerdir=/srv/sglang/version:/srv/sglang/base {directory} && "
        "useradd --system --no-create-home --shell /usr/sbin/nologin sglang"
    )
    node.put(HEADERS, f"Authorization: Bearer {KEY}\n", 0o600)
    made = wheel_plan(survey_of(node), wanted(), ENVIRONMENT, secrets=SECRETS)
    assert made.refusals == ()
    assert made.decision == "wheel"
    plan = one(made)
    assert plan.key_file is not None
    node.run(
        "sh -s", text=scripts.write_deployment(paths.Deployment("chat", 1).directory, plan.files)
    )
    node.run("sh -s", text=scripts.write_secrets((plan.key_file,), "chat"))
    node.run("sh -s", text=weights.check_weights(plan))
    switched = node.run("sh -s", text=scripts.switch(plan), check=False, timeout=400)
    assert switched.returncode == 0, switched.stdout + switched.stderr
    yield Served(node, plan, switched.stdout)
    node.discard()


def main_pid(node: Node) -> str:
    """The server's process, as systemd knows it."""
    return show(node, UNIT, "MainPID")["MainPID"]


def holders(node: Node, words: str) -> list[str]:
    """Return the argument lists and environments, of all processes, that have these words."""
    # What looks has them from a file.
    node.put("/root/sought", words, 0o600)
    where = "/proc/[0-9]*/cmdline /proc/[0-9]*/environ"
    return node.run(f"grep -lsF -f /root/sought {where}", check=False).stdout.split()


def test_the_gate_told_what_the_server_s_own_processes_have_read(served: Served) -> None:
    assert re.search(r"(?m)^[a-z ]+, \d+ s, [1-9]\d* MiB read", served.said), served.said


def test_the_server_itself_is_the_main_process_and_its_user_is_sglang(served: Served) -> None:
    node = served.node
    pid = main_pid(node)
    words = node.run(f"tr '\\000' '\\n' </proc/{pid}/cmdline").stdout.split("\n")
    directory = ENVIRONMENT.directory
    assert words[:3] == [f"{directory}/bin/python3", f"{directory}/bin/sglang", "serve"]
    group = show(node, UNIT, "ControlGroup")["ControlGroup"]
    there = node.run(f"ps -o user= -p $(paste -sd, /sys/fs/cgroup{group}/cgroup.procs)").stdout
    assert len(there.split()) >= 3
    assert set(there.split()) == {"sglang"}


def test_the_key_is_in_no_argument_list_no_environment_and_no_journal(served: Served) -> None:
    node = served.node
    assert f"/proc/{main_pid(node)}/cmdline" in holders(node, MODEL)
    assert holders(node, KEY) == []
    assert KEY not in node.run(f"journalctl -u {UNIT} -o cat --no-pager").stdout
    assert KEY not in node.run(f"systemctl show {UNIT}").stdout
    # What only the server may read it does read: it answers to nobody without the key.
    url = "http://127.0.0.1:30000/v1/models"
    status = "curl -s -o /dev/null -w '%{http_code}'"
    assert node.run(f"{status} {url}").stdout == "401"
    assert node.run(f"{status} -H @{HEADERS} {url}").stdout == "200"


def test_systemd_finds_the_unit_well_closed(served: Served) -> None:
    said = served.node.run(f"systemd-analyze security --no-pager {UNIT}").stdout
    score = re.search(r"Overall exposure level for .*: ([0-9.]+)", said)
    assert score is not None, said
    print(f"exposure of {UNIT}: {score[1]}")
    assert float(score[1]) <= 3.0


def test_the_server_may_write_its_caches_and_nothing_else(served: Served) -> None:
    node = served.node
    assert served.plan.launch is not None
    caches = served.plan.launch.cache_directory
    assert node.run(f"stat -c '%U %a' {caches}").stdout == "sglang 700\n"
    inside = f"nsenter -t {main_pid(node)} -m setpriv --reuid=sglang --regid=sglang --clear-groups"
    for path, may in (
        (caches, True),
        ("/tmp", True),
        ("/dev/shm", True),
        (ENVIRONMENT.directory, False),
        (paths.CACHES, False),
        (paths.DEPLOYMENTS, False),
        ("/var/lib", False),
    ):
        done = node.run(f"{inside} touch {path}/written && {inside} rm {path}/written", check=False)
        assert (done.returncode == 0) is may, path
    assert node.run(f"{inside} ls /root {paths.CREDENTIALS}", check=False).returncode != 0


def test_it_answers_and_the_survey_finds_nothing_to_do(served: Served) -> None:
    node, plan = served.node, served.plan
    assert plan.launch is not None
    said = node.run("sh -s", text=scripts.verify(plan.launch.service, "0.5.22", 1)).stdout
    verdict = judge(said.splitlines(), plan.launch.service, "0.5.22")
    assert verdict.ok, verdict.sentence
    node.run("sh -s", text=scripts.write_record("chat", 1, '{"result": "ready"}\n'))
    again = wheel_plan(survey_of(node), wanted(), ENVIRONMENT, secrets=SECRETS)
    assert kinds(again) == []
    assert again.converged
    assert survey_of(node).services["chat"].main_deployment == 1


def test_a_restart_finishes_what_is_in_flight(served: Served) -> None:
    node = served.node
    running = stream(node, TOKENS, headers=HEADERS)
    done = node.run("sh -s", text=scripts.control("restart", "chat"), timeout=400)
    assert "drained: the log says that no request remained" in done.stdout
    assert running.finish() == (TOKENS, True)
    assert show(node, UNIT, "ActiveState", "Result") == {
        "ActiveState": "active",
        "Result": "success",
    }


def test_with_another_kill_mode_the_request_in_flight_is_lost(served: Served) -> None:
    # Nobody shall change it back: systemd's own default signals the schedulers too.
    node = served.node
    node.put(f"{paths.drop_in_dir('chat')}/20-mine.conf", "[Service]\nKillMode=control-group\n")
    node.run("systemctl daemon-reload")
    running = stream(node, TOKENS, headers=HEADERS)
    node.run(f"systemctl stop {UNIT}", timeout=400)
    tokens, ended = running.finish()
    assert (tokens, ended) != (TOKENS, True)
    assert show(node, UNIT, "Result")["Result"] != "success"


@pytest.mark.parametrize("name", ["bookworm", "trixie"])
def test_systemd_reads_the_units_without_a_word(
    name: str, node_factory: Callable[..., Node], served: Served
) -> None:
    node = served.node if name == "bookworm" else node_factory("wheel-new", gpus=None, model=False)
    drop_in = next(file for file in served.plan.files if file.name == paths.DROP_IN_NAME)
    directory = paths.Deployment("chat", 1).directory
    if name == "trixie":
        node.put(paths.drop_in("chat"), drop_in.text)
        for unit in (wheel_unit_file("chat"), devices_unit_file()):
            node.put(unit.path, unit.text)
        node.run(f"useradd --system sglang; mkdir -p {directory}; systemctl daemon-reload")
    else:
        node.run(f"rm {paths.drop_in_dir('chat')}/20-mine.conf && systemctl daemon-reload")
    verify = f"systemd-analyze verify {UNIT} {paths.DEVICES_UNIT_NAME} 2>&1"
    assert node.run(verify, check=False).stdout == ""
    security = node.run(f"systemd-analyze security --no-pager {UNIT}").stdout
    score = re.search(r"Overall exposure level for .*: ([0-9.]+)", security)
    assert score is not None
    print(f"exposure of {UNIT} on {name}: {score[1]}")
    assert float(score[1]) <= 3.0
    # It ends with 0 all the same where it has something to say.
    node.put(f"{paths.drop_in_dir('chat')}/30-bad.conf", "[Service]\nStopDrainsSec=5\n")
    assert "StopDrainsSec" in node.run(verify, check=False).stdout
    # Without a driver the unit of the devices does nothing, and harms nobody.
    node.run(f"systemctl start {paths.DEVICES_UNIT_NAME}")
    if name == "trixie":
        node.discard()
