"""A hub token and an API key are used at the highest verbosity, and occur nowhere.

The values are made anew for each run. What must not hold them is searched while
the run is on, and after it: the tool's output, the controller's files, and on
the node arguments and environments of processes, files with their modes, docker
inspect, units and the journal.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plans.journal import logging_config
from plans.wishes import Service

from .harness.lab import MODEL
from .harness.machine import Node
from .harness.registry import Registry
from .site import COUNTED_PORT, Site, commands_of, count_commands, service, show
from .watching import forms, nothing_in, watched

UNIT = "sglang@chat.service"
TOKEN = f"hf_{secrets.token_hex(20)}"
KEY = f"sk-{secrets.token_hex(24)}"
OTHER_KEY = f"sk-{secrets.token_hex(24)}"
OTHER_TOKEN = f"hf_{secrets.token_hex(20)}"
CREDENTIALS = "/etc/sglang/credentials"


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A host with systemd 257 that has the images."""
    node = node_factory("secrets", images=True)
    count_commands(node)
    yield node
    node.discard()


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the controller that has the hub token."""
    path = tmp_path_factory.mktemp("mine") / "token"
    path.touch(0o600)
    path.write_text(f"{TOKEN}\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def site(
    node: Node, registry: Registry, token_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Site:
    """An inventory whose token is in a file and whose key is in a variable."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "tmp").mkdir()
    return Site(
        folder,
        [node],
        {
            "services": [service(api_key={"env": "SITE_KEY"})],
            "secrets": {"hub_token": {"file": str(token_file)}},
            "registry": {"mirrors": {"docker.io": registry.url}},
        },
        port=COUNTED_PORT,
        environment={
            "SITE_KEY": KEY,
            "HOME": str(folder),
            "TMPDIR": str(folder / "tmp"),
        },
    )


def ask(node: Node, path: str, key: str | None = None) -> str:
    """Return the status with which the server answers."""
    header = f"Authorization: Bearer {key}\n" if key else ""
    ran = node.run(
        f"curl -s -o /dev/null -w '%{{http_code}}' -H @- http://127.0.0.1:30000{path}", text=header
    )
    return ran.stdout


def test_a_run_at_the_highest_verbosity_leaves_neither_anywhere(site: Site, node: Node) -> None:
    loud = ("-vvv", "--json")
    with watched(node, TOKEN, KEY) as found:
        runs = [
            site.tool("lock", *loud),
            site.tool("plan", *loud, "--diff", "--out", str(site.folder / "saved.json")),
            site.tool("apply", *loud, "--diff"),
            site.tool("survey", *loud, "--record", str(site.folder / "recorded")),
        ]
    assert [ran.code for ran in runs] == [0, 0, 0, 0]
    for ran in runs:
        nothing_in(ran, TOKEN, KEY)
    # The search does find: the two files that have them, for root alone.
    assert found["private"] == {
        f"{CREDENTIALS}/hub-token": "0o600",
        f"{CREDENTIALS}/services/chat/1.yaml": "0o600",
    }
    assert found["rounds"] > 50
    assert any("docker run" in line for line in found["seen"])
    assert found["journal_bytes"] > 100_000
    assert {
        "arguments": {},
        "environments": {},
        "open": {},
        "inspect": 0,
        "journal": 0,
        "units": 0,
    }.items() <= found.items()
    modes = node.run(f"stat -c '%a %U' /etc/sglang/credentials {CREDENTIALS}/services").stdout
    assert modes.split("\n")[:2] == ["700 root", "700 root"]


def test_no_file_of_the_controller_has_them(site: Site) -> None:
    there = [path for path in site.folder.rglob("*") if path.is_file()]
    assert {"saved.json", "sglang.lock", "site.py"} <= {path.name for path in there}
    for path in there:
        text = path.read_bytes()
        assert not any(form.encode() in text for form in forms(TOKEN, KEY)), path
    for path in (site.folder / "saved.json", *(site.folder / "recorded").iterdir()):
        assert path.stat().st_mode & 0o777 == 0o600


def test_the_plan_says_what_a_key_in_the_server_means(site: Site) -> None:
    (node,) = json.loads((site.folder / "saved.json").read_text(encoding="utf-8"))["nodes"]
    (caution,) = [one for one in node["cautions"] if one["code"] == "KEY_IN_SERVER"]
    assert "keeps that line out of this node's journal" in caution["text"]
    assert node["changes"][0]["kind"] == "credential"


def test_the_server_answers_who_has_the_key_alone(node: Node) -> None:
    assert ask(node, "/v1/models") == "401"
    assert ask(node, "/v1/models", OTHER_KEY) == "401"
    assert ask(node, "/v1/models", KEY) == "200"
    assert ask(node, "/ready") == "200"
    log = node.run(f"journalctl -u {UNIT} -o cat --no-pager").stdout
    assert "Uvicorn running" in log
    assert "server_args=" not in log


def test_a_converged_node_with_secrets_costs_one_command(site: Site, node: Node) -> None:
    commands_of(node)
    before = show(node, UNIT, "InvocationID")
    ran = site.tool("apply")
    assert ran.code == 0
    assert "unchanged, ready" in ran.out
    assert len(commands_of(node)) == 1
    assert show(node, UNIT, "InvocationID") == before
    assert site.tool("verify").code == 0


def test_what_cannot_be_read_stops_an_apply_and_is_said_by_a_plan(site: Site, node: Node) -> None:
    del site.environment["SITE_KEY"]
    commands_of(node)
    ran = site.tool("apply")
    assert ran.code == 2
    assert "services[chat].api_key: the variable SITE_KEY is not set" in ran.err
    assert commands_of(node) == []
    ran = site.tool("plan", "--check")
    assert ran.code == 4
    assert "SECRET_UNREAD" in ran.out
    site.environment["SITE_KEY"] = KEY


@pytest.mark.parametrize("plain", [False, True])
def test_a_write_that_fails_shows_no_secret_at_any_verbosity(
    site: Site, node: Node, token_file: Path, plain: bool
) -> None:
    token_file.write_text(OTHER_TOKEN, encoding="utf-8")
    node.run(f"mkdir {CREDENTIALS}/hub-token.new")
    with watched(node, OTHER_TOKEN, KEY) as found:
        ran = site.pyinfra("bootstrap", "-y", "-vvv") if plain else site.tool("apply", "-vvv")
    node.run(f"rmdir {CREDENTIALS}/hub-token.new")
    assert ran.code == 1
    assert f"{CREDENTIALS}/hub-token could not be written" in ran.out + ran.err
    nothing_in(ran, TOKEN, OTHER_TOKEN, KEY)
    assert (found["arguments"], found["open"], found["journal"]) == ({}, {}, 0)
    assert node.read(f"{CREDENTIALS}/hub-token").strip() == TOKEN


def test_plain_pyinfra_writes_a_changed_token_and_shows_it_nowhere(site: Site, node: Node) -> None:
    before = show(node, UNIT, "InvocationID")
    with watched(node, OTHER_TOKEN, KEY) as found:
        ran = site.pyinfra("bootstrap", "-y", "-vvv")
    assert ran.code == 0
    nothing_in(ran, TOKEN, OTHER_TOKEN, KEY)
    assert (found["arguments"], found["open"], found["journal"]) == ({}, {}, 0)
    assert node.read(f"{CREDENTIALS}/hub-token").strip() == OTHER_TOKEN
    assert show(node, UNIT, "InvocationID") == before


def test_a_changed_key_is_a_new_deployment_and_the_old_one_keeps_its_own(
    site: Site, node: Node
) -> None:
    site.environment["SITE_KEY"] = OTHER_KEY
    ran = site.tool("plan", "--diff")
    assert "the api-key changes" in ran.out
    assert "~ daemon-reload" not in ran.out
    nothing_in(ran, KEY, OTHER_KEY)
    ran = site.tool("apply", "-vvv", "--json", "--diff")
    assert ran.code == 0
    nothing_in(ran, KEY, OTHER_KEY)
    with watched(node, KEY, OTHER_KEY) as found:
        pass  # what is left of it: the running processes and all of the journal
    assert (found["arguments"], found["open"], found["journal"]) == ({}, {}, 0)
    assert (ask(node, "/v1/models", KEY), ask(node, "/v1/models", OTHER_KEY)) == ("401", "200")
    kept = node.run(f"ls {CREDENTIALS}/services/chat").stdout.split()
    assert kept == ["1.yaml", "2.yaml"]
    links = node.run("cd /var/lib/sglang/deployments/chat && readlink current previous").stdout
    assert links.split() == ["2", "1"]


def test_where_systemd_cannot_filter_sglang_does_not_log_the_line(site: Site, node: Node) -> None:
    keyed = Service.model_validate(site.data["services"][0])
    config = logging_config(keyed, systemd_filters=False)
    assert config is not None
    node.put("/srv/quiet/logging.json", config)
    file = f"{CREDENTIALS}/services/chat/2.yaml"
    node.run(
        "docker run --detach --init --name quiet --volume /srv:/srv:ro "
        "--env SGLANG_LOGGING_CONFIG_PATH=/srv/quiet/logging.json "
        f"--mount type=bind,source={file},target={file},readonly "
        "$(docker inspect --format '{{.Config.Image}}' sglang-chat) "
        f"sglang serve --model-path {MODEL} --config {file}"
    )
    # The scheduler begins after the line with the arguments would have been logged.
    node.run(
        "for i in $(seq 240); do docker logs quiet 2>&1 | grep -q 'Load weight begin' && exit 0; "
        "sleep 0.5; done; docker logs quiet | tail; exit 1"
    )
    log = node.run("docker logs quiet 2>&1; docker rm --force quiet >/dev/null").stdout
    assert "server_args=" not in log
    assert OTHER_KEY not in log


def test_remove_takes_the_secrets_away_and_says_so(site: Site, node: Node) -> None:
    ran = site.tool("remove", "--yes")
    assert ran.code == 0
    assert "the keys of chat are gone" in ran.err
    assert "the hub token is gone" in ran.err
    assert node.run("ls -d /etc/sglang", check=False).stdout == ""
