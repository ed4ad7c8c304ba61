"""The deploys under plain pyinfra, as an operator calls it."""

from __future__ import annotations

import re
from pathlib import Path

from locks.lockfile import write_lock
from tests.fake.command import DEMO, fake, inventory, recording, run_alone
from tests.fake.test_exit_codes import VERIFIED, whole_lock
from tests.fake.test_isolation import SURVEYS


def test_a_survey_of_the_demonstration_tells_each_node_in_a_line() -> None:
    ended = run_alone(DEMO, "deploys/survey.py", "-y", module="pyinfra")
    assert ended.code == 0, ended.err
    assert "1 × Tesla T4" in ended.out + ended.err
    assert "NVIDIA GB10" in ended.out + ended.err


def test_a_bootstrap_of_the_demonstration_refuses_each_node_by_its_code() -> None:
    ended = run_alone(DEMO, "deploys/bootstrap.py", "-y", module="pyinfra")
    shown = ended.out + ended.err
    assert ended.code == 1
    for code in ("TOOLKIT_MISSING", "DRIVER_MISMATCH", "GPU_TOO_OLD", "LOCK_UNRESOLVED"):
        assert code in shown
    assert "Traceback" not in shown


def test_a_bootstrap_applies_to_the_good_node_whatever_the_others_are(tmp_path: Path) -> None:
    name, data = fake("good", recording("dgx-spark"))
    data["fake_responses"] |= VERIFIED
    bad = [fake(key, lines) for key, lines in SURVEYS.items()]
    path = inventory(tmp_path, *bad, fake("t4", recording("t4")), (name, data))
    write_lock(tmp_path / "sglang.lock", whole_lock())
    ended = run_alone(path, "deploys/bootstrap.py", "-y", module="pyinfra")
    shown = ended.out + ended.err
    assert "GPU_TOO_OLD" in shown
    for operation in ("Fetch the image of chat", "Start chat", "Verify chat"):
        assert operation in shown
    assert re.search(r"@fake/good\]\s+Success", shown)
    assert "Traceback" not in shown


def test_verify_and_remove_of_nothing_say_so(tmp_path: Path) -> None:
    path = inventory(tmp_path, fake("a", recording("dgx-spark")))
    verified = run_alone(path, "deploys/verify.py", "-y", module="pyinfra")
    assert verified.code == 1
    assert "no service is deployed here" in verified.out + verified.err
    removed = run_alone(path, "deploys/remove.py", "-y", module="pyinfra")
    assert removed.code == 0, removed.err
