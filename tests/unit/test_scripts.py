"""The programs that run on a node: what shells and shellcheck say of each, and what they hold."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from plans import ahead_program, applylock, bundle_scripts, door, paths, proof_scripts, scripts
from plans.becoming import becoming_program
from plans.bundle import Bundle, Taken
from plans.collecting import collect_program
from plans.deployment import TEMPLATES
from plans.fardoor import AtDoor, come_back, leave
from plans.hooks import Hook
from plans.maintenance import Mark, remove_mark, write_mark
from plans.mirrors import Mirrors
from plans.plan import NodePlan, Weights
from plans.scripts import Take
from plans.secrets import Secret, hub_token_files, key_file
from plans.wheel import canary_program
from plans.wheel import scripts as wheel_scripts
from plans.wheel import weights as wheel
from plans.wheel.environment import PlannedEnvironment
from tests.skipping import skip
from tests.unit.aheads import rebuilt, rebuilt_wheel
from tests.unit.bundles import environment, environment_to_bundle, manifest
from tests.unit.collections_ import everything_goes
from tests.unit.deployments import CAP, COMMIT, converged, fresh, one, plan, with_state
from tests.unit.doorplans import door_plan, of_door
from tests.unit.surveys import wish, wishes
from tests.unit.wheels import wheel_converged, wheel_plan

ROOT = Path(__file__).parents[2]
SHELLS = {"dash": ["dash", "-n"], "busybox": ["busybox", "sh", "-n"], "bash": ["bash", "-n"]}

# 2034: a program sets what only some of its cases read.
SHELLCHECK = ["shellcheck", "--shell=sh", "--severity=warning", "--exclude=SC2034", "-"]


def bundle_programs() -> Iterator[tuple[str, str]]:
    """Give the programs that make a bundle, and install from one."""
    found = manifest({"a": b"a"}, environments=[environment()])
    opened = Bundle("site.bundle", found, "a" * 64, 1)
    image, (model,) = found.images[0], found.models
    everything = Taken(opened, image, "sha256:" + "1" * 64, model.files, "/hub/b l", None)
    built = Taken(opened, environment=found.environments[0])
    for name, taken in (("all", everything), ("wheels", built)):
        yield f"begin-{name}", bundle_scripts.begin(taken)
        yield f"receive-{name}", bundle_scripts.receive(taken)
        yield f"place-{name}", bundle_scripts.place(taken)
    saved = bundle_scripts.ImageToSave("a/b:1", "sha256:" + "1" * 64, "sha256:" + "2" * 64)
    yield "gather", bundle_scripts.gather([saved], ["/hub/it's"])
    yield "send", bundle_scripts.send(["/hub/it's"])
    yield "clean", bundle_scripts.clean(paths.BUNDLE_WORK)
    yield "gather-wheels", bundle_scripts.wheels(environment_to_bundle())


def door_programs() -> Iterator[tuple[str, str]]:
    """Give the programs that put the door in its place, and take it away."""
    first = of_door(door_plan())
    yield "switch", door.switch(first)
    again = replace(
        first, units=(), units_before=(), act="return", back=("chat",), before=first.key
    )
    yield "switch-again", door.switch(again)
    yield "prepare", door.prepare(first)
    yield (
        "prepare-enable",
        door.prepare(replace(first, units=(), units_before=(), daemon_reload=False)),
    )
    yield "remove", door.remove()
    for name, server in (("own", "chat"), ("far", "[fd00::2]:30000")):
        there = AtDoor("gpu-a", server, name == "own")
        yield f"leave-{name}", leave(there, 600)
        yield f"come-back-{name}", come_back(there)


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
        if file.path.endswith(paths.STOP_GATE):
            yield "stop-gate", file.text
    bare = wheel_plan(wanted=wishes(CAP | {"model": "/home/me/qwen"}))
    for name, of in (("new", wheel_plan()), ("from-image", wheel_plan(converged())),
                     ("to-image", plan(wheel_converged())), ("hidden", bare)):  # fmt: skip
        yield f"wheel-switch-{name}", scripts.switch(one(of))
        yield f"wheel-write-{name}", scripts.write_deployment(directory, one(of).files)
    for file in one(wheel_plan()).files:
        if file.path.endswith(paths.GATE):
            yield "wheel-ready-gate", file.text
    weights = Weights("Qwen/Qwen3-8B", COMMIT, paths.WEIGHTS, (), fetch=True)
    yield "wheel-fetch-weights", wheel.fetch_weights(replace(one(wheel_plan()), weights=weights))
    yield "wheel-check-weights", wheel.check_weights(one(bare))
    yield "pull", scripts.pull("lmsysorg/sglang@sha256:" + "1" * 64)
    hub = replace(new, weights=Weights("Qwen/Qwen3-8B", COMMIT, paths.WEIGHTS, (), fetch=True))
    for name, text in door_programs():
        yield f"door-{name}", text
    for name, text in bundle_programs():
        yield f"bundle-{name}", text
    yield "fetch-weights", scripts.fetch_weights(hub)
    yield "check-weights", scripts.check_weights(local)
    for verb in ("stop", "restart", "look", "stop-now"):
        yield verb, scripts.control(verb, "chat")
    for kind in ("generate", "embed", "rerank"):
        yield f"verify-{kind}", scripts.verify(wish({"kind": kind})[0], "0.5.23", 1)
    yield "verify-without-ready", scripts.verify(wish({})[0], "0.5.19", 1)
    token = hub_token_files(Secret("hf_" + "t" * 34))
    key = key_file("chat", 1, "port: 30000\n", {"api-key": Secret("k" * 32)})
    yield "write-hub-token", scripts.write_secrets(token)
    yield "write-keys", scripts.write_secrets((key,), "chat")
    yield "remove-hub-token", scripts.remove_hub_token()
    yield "end-way-back", scripts.end_way_back("chat", 1)
    yield "record", scripts.write_record("chat", 1, '{"a": "it\'s"}\n')
    yield "remove", scripts.remove(("chat", "embed"), Take(), paths.CACHES)
    yield "remove-all", scripts.remove(("chat",), Take(True, True, True, True), paths.CACHES)
    tools = wish({"arguments": {"tool-call-parser": "qwen25"}})[0]
    for kind, served in (("generate", tools), ("embed", wish({"kind": "embed"})[0])):
        yield f"verify-hard-{kind}", proof_scripts.verify_hard(served, "0.5.23", 7)
        yield f"soak-{kind}", proof_scripts.soak(served, "0.5.23", 7, 60)
    yield "keep-logs", proof_scripts.keep_logs("chat", 7, "ab", '{"a": 1}\n')
    yield "keep-logs-first", proof_scripts.keep_logs("chat", 7, "", None)
    yield "hook", proof_scripts.hook(Hook(run='echo "it\'s"', on="node"), {"NODE": "o'neil"})
    ticket = applylock.Ticket("m-1-a", "o'neil@ops (pid 1)")
    yield "lock", applylock.locked("echo held\n", ticket)
    yield "lock-held", applylock.locked("echo held\n", ticket, held=True, takes_over="m-2-b")
    yield "unlock", applylock.unlock(ticket)
    for name, planned in environments():
        yield f"environment-prepare-{name}", wheel_scripts.prepare(planned)
        yield f"environment-build-{name}", wheel_scripts.build(planned)
        assert local.launch is not None
        local_wheel = replace(local, launch=replace(local.launch, environment=planned))
        yield f"wheel-canary-{name}", canary_program.canary(local_wheel)
        yield "wheel-canary-result", canary_program.canary_result(local_wheel)
    yield "environment-build-bundle", wheel_scripts.build(planned, "/srv/it's a bundle")
    yield "environment-repair", wheel_scripts.repair(planned)
    yield "environment-tool", wheel_scripts.put_tool("0" * 64)
    yield "http", (TEMPLATES / "http.sh").read_text(encoding="utf-8")
    yield "watch", (TEMPLATES / "watch.sh").read_text(encoding="utf-8")
    yield "survey", (ROOT / "facts/survey.sh").read_text(encoding="utf-8")
    yield "stock", (ROOT / "facts/stock.sh").read_text(encoding="utf-8")
    mark = Mark("reboot", "b00t", 1796000000, ("chat",), "580.95.05", ("GPU-1",))
    yield "maintenance", write_mark(mark)
    yield "maintenance-end", remove_mark()
    yield "collect", collect_program(everything_goes())
    for name, made in (("image", rebuilt()), ("wheel", rebuilt_wheel())):
        yield f"ahead-{name}", ahead_program.flashinfer(made)
        yield f"ahead-deep-gemm-{name}", ahead_program.deep_gemm(made)
        yield f"ahead-result-{name}", ahead_program.result(made)
    for known in (True, False):
        yield f"sudo-{known}", becoming_program("-H -u root", known=known)


def environments() -> Iterator[tuple[str, PlannedEnvironment]]:
    """Give an environment of which everything is missing, and one that is all there."""
    bare = PlannedEnvironment(
        key="0123456789abcdef",
        release="0.5.23",
        requirements="six==1.17.0 --hash=sha256:" + "0" * 64,
        size=1,
        python="3.12",
        cuda_home=None,
        packages=(),
        mirrors=Mirrors(),
        build=False,
        why="there and whole",
    )
    yield (
        "bare",
        replace(
            bare,
            packages=("g++", "libnuma1"),
            account=True,
            leftovers=("0123456789abcdef.new",),
            python_packages=("python3.12", "python3.12-dev"),
            mirrors=Mirrors(index="http://mirror.test/simple", python="http://mirror.test/python"),
        ),
    )
    yield "there", bare


PROGRAMS = dict(programs())


def need(program: str) -> None:
    """Skip loudly where a program is not there; fail where nothing may be skipped."""
    if shutil.which(program):
        return
    reason = f"{program} is not installed: .ci/prepare installs it"
    skip(reason)


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
    known |= {"wheel-canary", "wheel-canary-result", "door-switch"}
    known |= {"door-remove", "door-prepare", "door-tell"}
    known |= {"wheel-canary", "wheel-canary-result", "verify-hard", "soak", "keep-logs", "hook"}
    known |= {"collect", "maintenance", "sudo", "record", "room", "ahead", "ahead-result"}
    known |= {"canary", "lock", "unlock", "weights", "weights-wheel", "write-secrets", "stop-gate"}
    known |= {f"environment-{name}" for name in ("prepare", "tool", "build", "repair")}
    bundles = ("begin", "receive", "place", "gather", "wheels", "send", "clean")
    known |= {f"bundle-{name}" for name in bundles}
    there = {path.name.removesuffix(".sh.j2") for path in TEMPLATES.glob("*.sh.j2")}
    assert there == known


@pytest.mark.parametrize("make", [plan, wheel_plan])
def test_a_deployment_arrives_as_it_was_planned(
    tmp_path: Path, make: Callable[..., NodePlan]
) -> None:
    made = one(make(wanted=wishes(CAP | {"environment": {"PRIVATE_NOTE": "hf_secret"}})))
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
            if file.link is not None:
                assert os.readlink(written) == file.link
                continue
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
    assert text.rindex("stale ") < text.index("set -e\n") < text.index("ln -s ")
    assert text.index('ln -s "$number"') < text.index("step mv -fT")
    current, previous = (text.index(f'"$deployments/{name}"\n') for name in ("current", "previous"))
    assert text.index("step mv -fT") < current < previous


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
    changes = [
        text.index(word) for word in ("step mv -fT", "systemctl daemon-reload") if word in text
    ]
    changes += [text.rindex("systemctl --no-block")] if "systemctl --no-block" in text else []
    assert all(begins < place < ends for place in changes)
    # After that it only watches, and ends with whoever read it.
    assert "systemctl --no-block" not in text[ends:]
    assert "follow_start" in text[ends:]
