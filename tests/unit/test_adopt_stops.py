"""What stops a hand-made server, what becomes of its requests, and the plan once it is gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from facts.records import GpuContainer, GpuProcess, Listener, Survey
from plans.adopt.from_file import read_text
from plans.adopt.gathered import Gathered, Process, servers
from plans.adopt.node import adopt
from plans.adopt.records import Found
from plans.adopt.stopped import as_stopped
from tests.unit.surveys import docker, gpu, survey

ID = "a" * 64
SERVE = ["python3", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-8B"]


def inspected(name: str, words: list[str], **labels: str) -> dict[str, Any]:
    return {
        "Id": ID,
        "Name": f"/{name}",
        "Config": {"Image": "lmsysorg/sglang:v0.5.23", "Cmd": words, "Env": [], "Labels": labels},
        "HostConfig": {"NetworkMode": "bridge", "RestartPolicy": {"Name": "always"}},
        "Mounts": [],
    }


def process(pid: int, belongs: str, words: list[str] | None = None) -> Process:
    return Process(pid, 1, belongs, tuple(words or SERVE), {}, None, "0.5.23")


def one(found: Gathered) -> Found:
    (server,) = servers(found)
    return server


def test_a_container_that_the_daemon_would_start_again_is_told_not_to() -> None:
    server = one(Gathered(containers={ID: (inspected("llm", SERVE), None)}))
    assert server.stop == ("docker update --restart=no llm", "docker stop --time=600 llm")
    assert server.ends.startswith("requests in flight are finished, within 600 s")


def test_a_container_of_a_compose_project_is_stopped_by_compose() -> None:
    labels = {
        "com.docker.compose.project": "ai",
        "com.docker.compose.service": "chat",
        "com.docker.compose.project.config_files": "/srv/ai/compose.yaml,/srv/ai/gpu.yaml",
    }
    server = one(Gathered(containers={ID: (inspected("ai-chat-1", SERVE, **labels), None)}))
    assert server.where == "container ai-chat-1 (compose project ai, service chat)"
    assert server.stop[-1] == (
        "docker compose --project-name ai --file /srv/ai/compose.yaml --file /srv/ai/gpu.yaml "
        "stop --timeout 600 chat"
    )


def test_a_server_behind_a_shell_is_signalled_itself() -> None:
    words = ["bash", "-c", f"pip install x && {' '.join(SERVE)}"]
    containers: Any = {ID: (inspected("llm", words), None)}
    seen = one(Gathered([process(4711, ID)], containers))
    assert seen.stop[0] == "kill -TERM 4711"
    unseen = one(Gathered(containers=containers))
    assert "requests in flight are lost" in unseen.ends
    assert [str(note) for note in seen.command.lost] == [
        "the command pip beside it: the service runs the server alone"
    ]


UNIT = (
    "[Service]\nExecStart=/opt/venv/bin/python -m sglang.launch_server --model-path Qwen/Qwen3-8B\n"
)


@pytest.mark.parametrize(
    ("more", "first", "says"),
    [
        ("", "kill -TERM 9", "are finished"),
        ("Restart=always\n", "systemctl disable --now llm.service", "are lost"),
        ("Restart=always\nKillMode=mixed\n", "systemctl disable --now llm.service", "are finished"),
    ],
)
def test_a_unit_is_stopped_as_it_kills(more: str, first: str, says: str) -> None:
    server = one(Gathered([process(9, "llm.service")], units={"llm.service": (9, UNIT + more)}))
    assert server.stop[0] == first
    assert says in server.ends


def test_a_unit_around_docker_run_and_its_container_are_one_server() -> None:
    unit = "[Service]\nExecStart=/usr/bin/docker run --rm --name llm lmsysorg/sglang:v0.5.23 x\n"
    found = Gathered(
        containers={ID: (inspected("llm", SERVE), None)}, units={"chat.service": (1, unit)}
    )
    server = one(found)
    assert (server.kind, server.name) == ("unit", "chat.service")
    assert server.where == "unit chat.service (container llm)"
    assert server.container_name == "llm"


def test_what_the_toolkit_serves_itself_is_left_alone() -> None:
    ours = inspected("sglang-chat", SERVE, **{"sglang.service": "chat", "sglang.deployment": "3"})
    text = "[Service]\nEnvironmentFile=/var/lib/sglang/deployments/%i/current/launch.env\n"
    found = Gathered(
        [process(5, ID), process(6, "sglang@embed.service")],
        {ID: (ours, None)},
        {"sglang@embed.service": (6, text)},
    )
    assert servers(found) == []


def busy() -> Survey:
    """Return a node whose L4 an old server on port 30000 fills."""
    holds = (GpuProcess(11, "sglang::scheduler", 20000), GpuProcess(12, "/usr/bin/Xorg", 30))
    there = survey(gpu(processes=holds, memory_used_mib=20040))
    listeners = (
        Listener("0.0.0.0", 30000, 10, "docker-proxy"),
        Listener("127.0.0.1", 8080, 99, "nginx"),
    )
    legacy = (GpuContainer("a", "llm", "x", "legacy"), GpuContainer("b", "other", "y", "legacy"))
    return replace(
        there, listeners=listeners, docker=docker(there.nvidia.gpus, gpu_containers=legacy)
    )


def entries(port: int) -> Any:
    run = f"docker run --name llm -p {port}:30000 lmsysorg/sglang:v0.5.23 {' '.join(SERVE)}"
    (found,) = read_text(run, "run.sh")
    return adopt("node", [replace(found, container_name="llm")]).entries


def test_the_plan_is_of_the_node_without_the_old_server() -> None:
    without, held = as_stopped(busy(), entries(30000))
    assert held == ("port 30000", "memory of GPU 0")
    assert isinstance(without.listeners, tuple)
    assert [listener.port for listener in without.listeners] == [8080]
    (left,) = without.nvidia.gpus
    assert (left.memory_used_mib, [p.name for p in left.processes]) == (40, ["/usr/bin/Xorg"])
    assert isinstance(without.docker.gpu_containers, tuple)
    assert [one.name for one in without.docker.gpu_containers] == ["other"]


def test_a_port_of_another_program_stays_taken() -> None:
    without, held = as_stopped(busy(), entries(8080))
    assert without.listeners == busy().listeners
    assert "port 8080" not in held
