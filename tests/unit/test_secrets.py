"""Secrets in plans and programs: seen by nobody, and a changed one is a planned change."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from facts.records import ManagedFile, Survey
from plans import paths, scripts
from plans.deployment import TEMPLATES
from plans.journal import logging_config
from plans.make import make_plan
from plans.plan import NodePlan
from plans.secrets import NodeSecrets, Secret, fingerprint, hub_token_files, key_file
from tests.unit.deployments import (
    CAP,
    VERSION,
    applied,
    fresh,
    kinds,
    lock,
    one,
    with_file,
)
from tests.unit.doors import door
from tests.unit.surveys import wish, wishes

TOKEN = "hf_" + "t7" * 17
KEY = "sk-" + "q7" * 20
HELD = CAP | {"api_key": {"env": "KEY"}}


def held(key: str = KEY, token: str | None = TOKEN) -> NodeSecrets:
    """Return a node's secrets as they were read."""
    return NodeSecrets(Secret(token) if token else None, {"chat": {"api-key": Secret(key)}})


def planned(
    node: Survey | None = None,
    service: dict[str, Any] | None = None,
    secrets: NodeSecrets | None = None,
    **more: Any,
) -> NodePlan:
    """Return the plan of a node whose service holds a key."""
    wanted = wishes(service or HELD, secrets={"hub_token": {"env": "T"}}, **more)
    return make_plan(node or fresh(), wanted, lock(), VERSION, secrets=secrets or held())


def done(plan: NodePlan, node: Survey | None = None) -> Survey:
    """Return the survey once a plan was applied, with the files that only root reads."""
    after = applied(plan, node)
    files = dict(after.files)
    written = [file for service in plan.services if (file := service.key_file)]
    for file in (*written, *(plan.hub_token or ())):
        # The checksum of the token itself does not travel.
        sums = [] if file.path == paths.credential(paths.HUB_TOKEN) else [file.sha256]
        made = ManagedFile(file.path, True, mode="0600", owner="root:root")
        files[file.path] = replace(made, sha256=sums[0]) if sums else made
    return replace(after, files=files)


def test_a_secret_shows_itself_to_nobody() -> None:
    secret = Secret(KEY)
    document = dataclasses.asdict(held())
    for text in (str(secret), repr(secret), f"{secret:>50}", f"{secret}", repr([secret])):
        assert KEY not in text
    assert KEY not in repr(document)
    assert copy.deepcopy(secret) == secret == copy.copy(secret)
    with pytest.raises(TypeError):
        json.dumps(document)
    with pytest.raises(TypeError):
        pickle.dumps(secret)


@given(st.text("abcdefghijklmnop0123456789._~+/-", min_size=20, max_size=60))
def test_a_key_is_in_no_part_of_a_plan_but_the_file_that_holds_it(text: str) -> None:
    key = "K" + text
    made = planned(secrets=held(key, token="hf_" + key))
    service = one(made)
    shown = [repr(made), str(made), json.dumps(made.as_dict()), repr(dataclasses.asdict(made))]
    shown += [change.diff for change in made.changes]
    shown += [file.text for file in service.files]
    shown += [scripts.write_deployment("/d", service.files), scripts.switch(service)]
    shown += [scripts.verify(service.launch.service, "0.5.23", 1)] if service.launch else []
    shown += [service.drop_in.text if service.drop_in else ""]
    assert not [text for text in shown if key in text]
    assert service.key_file is not None
    assert key in service.key_file.content.reveal()


def test_a_new_node_gets_the_token_and_the_key() -> None:
    made = planned()
    assert kinds(made)[0] == "credential"
    assert "KEY_IN_SERVER" in {caution.code for caution in made.cautions}
    service = one(made)
    assert service.key_file is not None
    assert service.key_file.path == "/etc/sglang/credentials/services/chat/1.yaml"
    text = service.key_file.content.reveal()
    own = next(file for file in service.files if file.path.endswith(paths.SERVER_YAML))
    assert text.startswith(own.text)
    assert yaml.safe_load(text) == yaml.safe_load(own.text) | {"api-key": KEY}
    launch = next(file for file in service.files if file.path.endswith(paths.LAUNCH_ENV)).text
    assert f'SGLANG_CONFIG="{service.key_file.path}"' in launch
    mount = f"--mount=type=bind,source={service.key_file.path},target={service.key_file.path}"
    assert f"{mount},readonly" in launch


def test_a_node_that_has_them_gets_no_change() -> None:
    made = planned(done(planned()))
    assert made.changes == ()
    assert made.converged
    assert one(made).key_file is None
    assert made.hub_token is None


def test_a_changed_key_is_a_new_deployment_that_says_so() -> None:
    made = planned(done(planned()), secrets=held("other-" + KEY))
    assert kinds(made) == ["deployment", "restart"]
    assert made.changes[0].why == "the api-key changes"
    service = one(made)
    assert service.number == 2
    assert service.key_file is not None
    assert service.key_file.path.endswith("/chat/2.yaml")


def test_a_changed_argument_is_not_taken_for_a_changed_key() -> None:
    made = planned(done(planned()), HELD | {"arguments": {"mem-fraction-static": 0.7}})
    assert made.changes[0].why == "server.yaml of the current deployment differs"
    both = planned(
        done(planned()),
        HELD | {"arguments": {"mem-fraction-static": 0.7}},
        held("other-" + KEY),
    )
    assert both.changes[0].why.endswith("differs; the api-key changes")


def test_a_key_that_is_gone_or_open_to_others_is_written_anew() -> None:
    node = done(planned())
    path = paths.key_file("chat", 1)
    gone = with_file(node, path, lambda file: ManagedFile(file.path, exists=False))
    assert planned(gone).changes[0].why == "the api-key is not there yet"
    opened = with_file(node, path, lambda file: replace(file, mode="0644"))
    assert planned(opened).changes[0].why == f"{path} is not for root alone"


def test_another_source_of_the_same_key_changes_nothing() -> None:
    assert planned(done(planned()), CAP | {"api_key": {"file": "/key"}}).converged


def test_the_hub_token_is_written_changed_and_taken_away() -> None:
    node = done(planned())
    changed = planned(node, secrets=held(token="hf_other"))
    assert kinds(changed) == ["credential"]
    assert changed.changes[0].why.startswith("the hub token changes")
    assert changed.hub_token is not None
    assert [file.path for file in changed.hub_token] == [
        "/etc/sglang/credentials/hub-token",
        "/etc/sglang/credentials/hub-token.mark",
    ]
    without = make_plan(node, wishes(HELD), lock(), VERSION, secrets=held(token=None))
    assert kinds(without) == ["credential"]
    assert without.hub_token == ()


def test_secrets_that_could_not_be_read_leave_the_node_as_it_is_and_are_no_convergence() -> None:
    unread = NodeSecrets(unread=("services[chat].api_key: the variable KEY is not set",))
    made = planned(done(planned()), secrets=unread)
    assert made.changes == ()
    assert not made.converged
    assert made.cautions[0].code == "SECRET_UNREAD"


def test_a_plan_that_was_given_no_secrets_says_that_they_were_not_read() -> None:
    made = make_plan(done(planned()), wishes(HELD), lock(), VERSION)
    assert made.unread == ("services[chat].api_key: was not read",)
    assert not made.converged


def test_a_key_takes_the_warning_of_an_open_port_away() -> None:
    made = planned(service=HELD | {"address": "0.0.0.0"})
    assert {caution.code for caution in made.cautions} == {"KEY_IN_SERVER"}


def test_a_key_with_several_tokenizers_is_refused() -> None:
    made = planned(service=HELD | {"arguments": {"tokenizer-worker-num": 2}})
    assert [refusal.code for refusal in made.refusals] == ["KNOWN_DEFECT"]


@pytest.mark.parametrize(("systemd", "filtered"), [(249, False), (252, False), (253, True)])
def test_the_key_stays_out_of_the_journal_of_every_systemd(systemd: int, filtered: bool) -> None:
    made = planned(replace(fresh(), systemd_version=systemd))
    service = one(made)
    assert service.drop_in is not None
    assert ("LogFilterPatterns=~server_args=" in service.drop_in.text) is filtered
    files = {file.path.rsplit("/", 1)[1]: file.text for file in service.files}
    assert (paths.LOGGING_JSON in files) is not filtered
    assert ("SGLANG_LOGGING_CONFIG_PATH=" in files[paths.CONTAINER_ENV]) is not filtered
    (caution,) = [one for one in made.cautions if one.code == "KEY_IN_SERVER"]
    assert ("not logged on this node" in caution.text) is not filtered
    assert planned(done(made, replace(fresh(), systemd_version=systemd))).converged


def test_python_takes_the_configuration_of_the_log_and_leaves_that_line_out() -> None:
    config = logging_config(wish(HELD)[0], systemd_filters=False)
    program = (
        "import json, logging, logging.config, sys\n"
        "logging.basicConfig(level='INFO', format='first %(message)s')\n"
        "logging.config.dictConfig(json.load(sys.stdin))\n"
        "for name in ('sglang.srt.entrypoints.engine', 'sglang.srt.managers.scheduler'):\n"
        "    logging.getLogger(name).info('info of %s', name)\n"
        "    logging.getLogger(name).warning('warning of %s', name)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], input=config, capture_output=True, text=True, check=True
    )
    lines = [line.split("] ")[1] for line in said.stderr.splitlines()]
    assert lines == [
        "warning of sglang.srt.entrypoints.engine",
        "info of sglang.srt.managers.scheduler",
        "warning of sglang.srt.managers.scheduler",
    ]


def test_where_the_operator_configures_the_log_the_plan_says_who_can_read_the_key() -> None:
    own = HELD | {"environment": {"SGLANG_LOGGING_CONFIG_PATH": "/srv/log.json"}}
    made = planned(replace(fresh(), systemd_version=252), own)
    (caution,) = [one for one in made.cautions if one.code == "KEY_IN_SERVER"]
    assert "systemd-journal, adm, wheel" in caution.text


def test_a_service_without_keys_has_no_filter_and_its_own_configuration() -> None:
    made = make_plan(fresh(), wishes(CAP), lock(), VERSION)
    service = one(made)
    assert service.drop_in is not None
    assert "LogFilterPatterns" not in service.drop_in.text
    assert not any("credentials" in file.text for file in service.files)


def test_a_checksum_that_travels_costs_a_slow_one_for_each_guess() -> None:
    mark = fingerprint(Secret(KEY), "chat api-key")
    assert len(mark) == 32
    assert mark != fingerprint(Secret(KEY), "chat admin-api-key")
    file = key_file("chat", 1, "port: 1\n", {"api-key": Secret(KEY)})
    assert mark in file.content.reveal()
    assert hub_token_files(Secret(TOKEN))[1].content.reveal().strip() != TOKEN


# --- the programs on a node


def run(program: str, shell: tuple[str, ...] = ("sh",), **more: Any) -> str:
    """Run a program as it is run on a node, over standard input."""
    ended: subprocess.CompletedProcess[str] = subprocess.run(
        [*shell, "-s"], input=program, capture_output=True, text=True, check=False, **more
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("shell", [("dash",), ("bash",), ("busybox", "sh")])
def test_a_key_arrives_whole_for_its_owner_alone(
    tmp_path: Path, shell: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(shell[0]) is None:
        pytest.skip(f"{shell[0]} is not installed: .ci/prepare installs it")
    monkeypatch.setattr(paths, "CREDENTIALS", f"{tmp_path}/credentials")
    monkeypatch.setattr(paths, "KEYS", f"{tmp_path}/credentials/services")
    monkeypatch.setattr(paths, "DEPLOYMENTS", f"{tmp_path}/deployments")
    for number in (1, 3):
        (tmp_path / f"deployments/chat/{number}").mkdir(parents=True)
    folder = tmp_path / "credentials/services/chat"
    for number in (1, 2, 3):
        file = key_file("chat", number, "port: 1\n", {"api-key": Secret(KEY)})
        if number == 3:
            (folder / "3.yaml").mkdir()  # as Docker leaves one
        run(scripts.write_secrets((file,), "chat"), shell)
        if number != 2:
            assert (folder / f"{number}.yaml").read_text(encoding="utf-8") == file.content.reveal()
            assert (folder / f"{number}.yaml").stat().st_mode & 0o777 == 0o600
    # That of a deployment that is not there went.
    assert sorted(path.name for path in folder.iterdir()) == ["1.yaml", "3.yaml"]
    assert (tmp_path / "credentials").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("client", ["curl", "python3", "wget"])
def test_every_client_sends_the_key_that_the_configuration_holds(
    client: str, tmp_path: Path
) -> None:
    program = sys.executable if client == "python3" else shutil.which(client)
    if program is None:
        pytest.skip(f"{client} is not installed: .ci/prepare installs it")
    tools = tmp_path / "bin"
    tools.mkdir()
    words = tmp_path / "words"
    for name in ("sed", "mktemp", "rm", "cat"):
        (tools / name).symlink_to(str(shutil.which(name)))
    # Each client through a program that writes its arguments down.
    (tools / client).write_text(
        f'#!/bin/sh\nprintf "%s " "$@" >> {words}\nexec {program} "$@"\n',
        encoding="utf-8",
    )
    (tools / client).chmod(0o755)
    config = tmp_path / "1.yaml"
    config.write_text(
        key_file("chat", 1, "port: 1\n", {"api-key": Secret(KEY)}).content.reveal(),
        encoding="utf-8",
    )
    (tmp_path / "body").write_text("hello", encoding="utf-8")
    http = (TEMPLATES / "http.sh").read_text(encoding="utf-8")
    env = {"PATH": str(tools)}
    with door(KEY) as port:
        base = f"http://127.0.0.1:{port}"
        ask = f"http GET {base}/v1/models 5\nhttp POST {base}/v1 5 {tmp_path}/body\n"
        with_key = run(f"SGLANG_CONFIG={config}\n{http}{ask}", ("/bin/sh",), env=env).split("\n")
        without = run(f"SGLANG_CONFIG=/none\n{http}{ask}", ("/bin/sh",), env=env).split("\n")
    got = [line for line in with_key if line]
    assert got[1::2] == ["200", "200"]
    assert [json.loads(line)["got"] for line in got[::2]] == ["", "hello"]
    assert "200" not in without
    assert KEY not in words.read_text(encoding="utf-8")
    assert not list(Path("/run").glob("sglang-http.*"))
