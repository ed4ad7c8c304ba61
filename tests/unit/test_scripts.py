"""The programs that run on a node: what shells and shellcheck say of each, and what they hold."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from plans import applylock, paths, scripts
from plans.deployment import TEMPLATES
from plans.plan import Weights
from plans.scripts import Take
from plans.secrets import Secret, hub_token_files, key_file
from tests.unit.deployments import CAP, COMMIT, converged, fresh, one, plan, with_state
from tests.unit.surveys import wish, wishes

ROOT = Path(__file__).parents[2]
SHELLS = {"dash": ["dash", "-n"], "busybox": ["busybox", "sh", "-n"], "bash": ["bash", "-n"]}

# 2034: a program sets what only some of its cases read.
SHELLCHECK = ["shellcheck", "--shell=sh", "--severity=warning", "--exclude=SC2034", "-"]


def programs() -> Iterator[tuple[str, str]]:
    """Give every program by a name, rendered for the cases in which its text differs."""
    new = one(plan())
    changed = one(plan(converged(), wishes(CAP | {"shm_size": "1g"})))
    waits = one(plan(with_state(converged(), active_state="activating")))
    local = one(plan(wanted=wishes(CAP | {"model": "/srv/models/qwen"})))
    for name, made in (("new", new), ("changed", changed), ("waits", waits), ("local", local)):
        yield f"switch-{name}", scripts.switch(made)
        yield f"canary-{name}", scripts.canary(made)
    directory = paths.Deployment("chat", 1).directory
    yield "write-deployment", scripts.write_deployment(directory, new.files)
    for file in new.files:
        if file.path.endswith(paths.GATE):
            yield "ready-gate", file.text
    yield "pull", scripts.pull("lmsysorg/sglang@sha256:" + "1" * 64)
    hub = replace(new, weights=Weights("Qwen/Qwen3-8B", COMMIT, paths.WEIGHTS, (), fetch=True))
    yield "fetch-weights", scripts.fetch_weights(hub)
    yield "check-weights", scripts.check_weights(local)
    for verb in ("stop", "restart"):
        yield verb, scripts.control(verb, "chat")
    for kind in ("generate", "embed", "rerank"):
        yield f"verify-{kind}", scripts.verify(wish({"kind": kind})[0], "0.5.23", 1)
    yield "verify-without-ready", scripts.verify(wish({})[0], "0.5.19", 1)
    token = hub_token_files(Secret("hf_" + "t" * 34))
    key = key_file("chat", 1, "port: 30000\n", {"api-key": Secret("k" * 32)})
    yield "write-hub-token", scripts.write_secrets(token)
    yield "write-keys", scripts.write_secrets((key,), "chat")
    yield "remove-hub-token", scripts.remove_hub_token()
    yield "record", scripts.write_record("chat", 1, '{"a": "it\'s"}\n')
    yield "remove", scripts.remove(("chat", "embed"), Take(), paths.CACHES)
    yield "remove-all", scripts.remove(("chat",), Take(True, True, True), paths.CACHES)
    ticket = applylock.Ticket("m-1-a", "o'neil@ops (pid 1)")
    yield "lock", applylock.locked("echo held\n", ticket)
    yield "lock-held", applylock.locked("echo held\n", ticket, held=True, takes_over="m-2-b")
    yield "unlock", applylock.unlock(ticket)
    yield "http", (TEMPLATES / "http.sh").read_text(encoding="utf-8")
    yield "watch", (TEMPLATES / "watch.sh").read_text(encoding="utf-8")
    yield "survey", (ROOT / "facts/survey.sh").read_text(encoding="utf-8")


PROGRAMS = dict(programs())


def need(program: str) -> None:
    """Skip loudly where a program is not there; fail where nothing may be skipped."""
    if shutil.which(program):
        return
    reason = f"{program} is not installed: .ci/prepare installs it"
    if os.environ.get("SGLANG_TESTS_NO_SKIP") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_shell_reads_the_program(shell: str, name: str) -> None:
    need(shell)
    done = subprocess.run(
        SHELLS[shell], input=PROGRAMS[name], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", PROGRAMS)
def test_shellcheck_has_nothing_to_say_of_the_program(name: str) -> None:
    need("shellcheck")
    done = subprocess.run(
        SHELLCHECK, input=PROGRAMS[name], capture_output=True, text=True, check=False
    )
    assert done.stdout == ""
    assert done.returncode == 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_nothing_of_the_template_left(name: str) -> None:
    text = re.sub(r"(?s)<<'EOT'\n.*?\nEOT\n", "", PROGRAMS[name])
    text = text.replace((TEMPLATES / "canary.py").read_text(encoding="utf-8").rstrip(), "")
    text = text.replace((TEMPLATES / "http.sh").read_text(encoding="utf-8"), "")  # has Python
    assert "{%" not in text
    assert "None" not in text
    assert "{{" not in text.replace("{{.", "").replace("{{json", "")


def test_every_template_is_rendered_in_these_tests() -> None:
    known = {"switch", "write-deployment", "ready-gate", "pull", "control", "verify", "remove"}
    known |= {"canary", "lock", "unlock", "weights", "write-secrets"}
    there = {path.name.removesuffix(".sh.j2") for path in TEMPLATES.glob("*.sh.j2")}
    assert there == known


def test_a_deployment_arrives_as_it_was_planned(tmp_path: Path) -> None:
    made = one(plan(wanted=wishes(CAP | {"environment": {"PRIVATE_NOTE": "hf_secret"}})))
    final = tmp_path / "deployments" / "chat" / "1"
    program = scripts.write_deployment(str(final), made.files)
    for _ in range(2):  # a run that was cut is run again
        done = subprocess.run(["sh", "-s"], input=program, text=True, check=False)
        assert done.returncode == 0
        assert {file.name for file in final.iterdir()} == {
            file.path.rsplit("/", 1)[1] for file in made.files
        }
        for file in made.files:
            written = final / file.path.rsplit("/", 1)[1]
            assert written.read_text(encoding="utf-8") == file.text
            assert oct(written.stat().st_mode & 0o7777) == f"0o{file.mode[1:]}"
    assert [path.name for path in final.parent.iterdir()] == ["1"]


def test_a_file_that_did_not_arrive_whole_leaves_the_old_deployment(tmp_path: Path) -> None:
    made = one(plan())
    final = tmp_path / "1"
    final.mkdir()
    (final / "old").write_text("old", encoding="utf-8")
    program = scripts.write_deployment(str(final), made.files)
    broken = program.replace(made.files[0].sha256, "0" * 64)
    done = subprocess.run(["sh", "-s"], input=broken, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "did not arrive whole" in done.stderr
    assert [path.name for path in final.iterdir()] == ["old"]


@pytest.mark.parametrize("link", ["current", "previous"])
def test_a_deployment_that_is_in_use_is_never_replaced(tmp_path: Path, link: str) -> None:
    # Another apply was faster: it made the same number, and the service runs from it.
    final = tmp_path / "7"
    final.mkdir()
    (final / "old").write_text("old", encoding="utf-8")
    (tmp_path / link).symlink_to("7")
    program = scripts.write_deployment(str(final), one(plan()).files)
    done = subprocess.run(["sh", "-s"], input=program, capture_output=True, text=True, check=False)
    assert done.returncode == 75
    assert done.stdout.startswith("@refused STALE_PLAN deployment 7 is the ")
    assert [path.name for path in final.iterdir()] == ["old"]


def test_a_record_arrives_as_it_is(tmp_path: Path) -> None:
    text = '{"result": "it\'s $HOME", "ü": 1}\n'
    program = scripts.write_record("chat", 7, text)
    here = program.replace(paths.DEPLOYMENTS, str(tmp_path))
    (tmp_path / "chat" / "7").mkdir(parents=True)
    subprocess.run(["sh", "-s"], input=here, text=True, check=True)
    assert (tmp_path / "chat" / "7" / "record.json").read_text(encoding="utf-8") == text


def test_the_switch_compares_everything_the_plan_was_made_from() -> None:
    node = with_state(converged(), current=4, previous=3, main_pid=77, invocation_id="cd" * 16)
    text = scripts.switch(one(plan(node, wishes(CAP | {"port": 30009, "output_cap": 9}))))
    assert '"$current" = 4 ]' in text
    assert f"'77 {'cd' * 16}'" in text
    drop_in = node.files[paths.drop_in("chat")]
    assert f"{drop_in.sha256} |" in text
    assert "sport = :30009" in text
    # All of it before the first thing that changes.
    assert text.rindex("stale ") < text.index("set -e\n") < text.index("ln -sfn")
    assert text.index("ln -sfn 4") < text.index('ln -sfn "$number"')


def test_a_switch_does_only_what_the_plan_says() -> None:
    new = scripts.switch(one(plan()))
    assert "systemctl daemon-reload" in new
    assert "systemctl --quiet --no-reload enable" in new
    assert "--no-block start" in new
    again = scripts.switch(one(plan(converged(), wishes(CAP | {"shm_size": "1g"}))))
    assert "daemon-reload" not in again
    # It costs nothing, and brings a link that a newer unit has: no reload comes of it.
    assert "--no-reload enable" in again
    assert "--no-block restart" in again


def test_a_port_is_taken_only_by_a_listener_that_meets_the_service_s_address() -> None:
    text = scripts.switch(one(plan()))
    assert "| grep -xF -e 127.0.0.1:30000 -e '*:30000' -e 0.0.0.0:30000 -e '[::]:30000'" in text
    everywhere = scripts.switch(one(plan(wanted=wishes(CAP | {"address": "0.0.0.0"}))))
    assert "grep -xF" not in everywhere


def test_no_secret_is_in_a_program_but_the_one_that_writes_it() -> None:
    wanted = wishes(CAP | {"environment": {"PRIVATE_NOTE": "hf_secret"}})
    made = one(plan(fresh(), wanted))
    assert made.launch is not None
    assert "hf_secret" not in scripts.switch(made)
    assert "hf_secret" not in scripts.verify(made.launch.service, "0.5.23", 1)
    assert "hf_secret" not in repr(replace(made, files=(), launch=None))


@pytest.mark.parametrize("name", ["switch-new", "switch-changed", "switch-waits"])
def test_a_switch_that_nobody_reads_any_more_goes_on_to_the_start(name: str) -> None:
    text = PROGRAMS[name]
    begins, ends = text.index("trap '' HUP INT TERM PIPE"), text.rindex("\nheeds\n")
    changes = [text.index(word) for word in ("mv -fT", "systemctl daemon-reload") if word in text]
    changes += [text.rindex("systemctl --no-block")] if "systemctl --no-block" in text else []
    assert all(begins < place < ends for place in changes)
    # After that it only watches, and ends with whoever read it.
    assert "systemctl --no-block" not in text[ends:]
    assert "follow_start" in text[ends:]
