"""The catalogue has every code that the source raises, and explains each."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import get_args

import pytest
import yaml

from locks.failures import RegistryCode
from locks.hub import HubCode, ModelRefused
from plans.codes import UnknownCode, catalogue, explain

ROOT = Path(__file__).parents[2]
FOLDERS = ("cli", "deploys", "facts", "locks", "operations", "plans", "releases")
RAISED = re.compile(
    r"(?:Refusal|Caution|Problem|ReferenceRefused|refuse|caution)\(\s*(?:code=)?\"([A-Z][A-Z0-9_]{2,})\""
    r"|\bcode=\"([A-Z][A-Z0-9_]{2,})\""
    r"|\bcode: str = \"([A-Z][A-Z0-9_]{2,})\""
    # A command line that fails names its code last.
    r"|\bfailed\((?:[^()]|\([^()]*\))*?\"([A-Z][A-Z0-9_]{2,})\"(?: if own else \"FAILED\")?\)"
    r"|\.refuse\(\s*\"([A-Z][A-Z0-9_]{2,})\""
    r"|code: Literal\[\"([A-Z_]+)\", \"([A-Z_]+)\"\]"
)

IN_PROGRAMS = re.compile(r"\b(?:refuse|stale) ([A-Z]{3,}_[A-Z_]+)\b")
"""Programs on the node refuse with a code as well."""


def raised() -> dict[str, str]:
    """Return every code that the source or the data of the rules raises, and where."""
    found: dict[str, str] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for match in RAISED.finditer(path.read_text(encoding="utf-8")):
                for code in filter(None, match.groups()):
                    found[code] = str(path.relative_to(ROOT))
    for name in ("rules", "wheel_rules", "hosts"):
        data = yaml.safe_load((ROOT / "plans/data" / f"{name}.yaml").read_text(encoding="utf-8"))
        for one in [*data.get("rules", ()), *data.get("smi", ())]:
            if one.get("code"):
                found[one["code"]] = f"plans/data/{name}.yaml"
        for code in data.get("cautions", ()):
            found[code] = f"plans/data/{name}.yaml"
    for path in sorted((ROOT / "templates").iterdir()):
        for code in IN_PROGRAMS.findall(path.read_text(encoding="utf-8")):
            found[code] = f"templates/{path.name}"
    for code in (*get_args(RegistryCode), *get_args(HubCode), ModelRefused.code):
        found[code] = "locks"
    return found


def test_every_code_of_the_catalogue_is_raised_somewhere() -> None:
    # Named by a variable where it is raised, which the search does not follow.
    text = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in (*FOLDERS, "templates")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".j2", ".yaml") and path.name != "codes.yaml"
    )
    words = set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", text))
    unused = [code for code in catalogue() if code not in words]
    assert set(unused) <= {
        "VERIFY_FAILED",
    }


def test_every_code_that_is_raised_is_in_the_catalogue() -> None:
    missing = {code: where for code, where in raised().items() if code not in catalogue()}
    assert not missing


def test_the_search_for_codes_finds_them() -> None:
    found = raised()
    assert {"DRIVER_TOO_OLD", "DOCKER_MISSING", "GPU_DEGRADED", "FORWARD_COMPAT"} <= set(found)
    assert {"STALE_PLAN", "APPLY_RUNNING", "NOT_DEPLOYED", "UNREACHABLE", "FAILED"} <= set(found)
    assert len(found) > 80


@pytest.mark.parametrize("code", sorted(catalogue()))
def test_a_code_is_told_in_one_sentence_with_ways_out(code: str) -> None:
    one = explain(code)
    assert one.title.endswith("."), "a sentence"
    assert "\n" not in one.title
    assert all(way.strip() for way in one.ways_out)
    assert one.as_dict()["code"] == code


def test_a_code_is_found_however_it_is_written() -> None:
    assert explain("driver-too-old") is explain(" DRIVER_TOO_OLD ")


def test_a_code_that_is_nearly_right_gets_suggestions() -> None:
    with pytest.raises(UnknownCode, match="DRIVER_TOO_OLD") as caught:
        explain("DRIVER_OLD")
    assert "DRIVER_TOO_OLD" in caught.value.near
    with pytest.raises(UnknownCode, match="MIG_PENDING"):
        explain("MIG")
    with pytest.raises(UnknownCode, match="prints its own"):
        explain("qqqq")


def test_who_lacks_root_is_told_the_key_of_the_inventory_and_no_option() -> None:
    told = " ".join(catalogue()["NEED_ROOT"].ways_out)
    assert "'ssh_user': 'root'" in told
    assert "--ssh-user" not in told


def test_the_command_that_holds_a_driver_holds_its_packages_and_not_the_container_toolkit(
    tmp_path: Path,
) -> None:
    (way,) = (one for one in explain("DRIVER_MISMATCH").ways_out if "apt-mark" in one)
    command = re.findall("`([^`]+)`", way)[-1]
    known = ("installed libnvidia-compute-580", "installed nvidia-dkms-580-open",
             "config-files nvidia-driver-570", "installed nvidia-container-toolkit",
             "not-installed nvidia-common", "installed libnvidia-container1")  # fmt: skip
    for name, text in (
        ("dpkg-query", "printf '%s\\n' " + " ".join(f"'{one}'" for one in known)),
        ("sudo", 'echo "$@"'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", command], env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "apt-mark hold libnvidia-compute-580 nvidia-dkms-580-open\n"
