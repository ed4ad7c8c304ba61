"""Every recorded output of nvidia-smi, on a host that is healthy otherwise, is decided as its index says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from facts.parsers.nvidia_query import QUERY
from facts.parsing import parse_survey
from facts.records import ABSENT, Nvidia, Survey
from plans.runtime import decide
from tests.unit.surveys import HOST, docker, wish

RECORDED = Path(__file__).parents[1] / "recorded" / "nvidia-smi"
INDEX: dict[str, dict[str, Any]] = yaml.safe_load((RECORDED / "index.yaml").read_text())
DECIDED = sorted(name for name, one in INDEX.items() if one.get("image"))


def lines_of(name: str) -> list[str]:
    """Return an output without the comments at its top."""
    text = (RECORDED / f"{name}.txt").read_text()
    return re.sub(r"\A(# .*\n)*", "", text).rstrip("\n").split("\n")


def nvidia_of(name: str) -> Nvidia:
    """Return what the survey's own parsers make of an output."""
    code = INDEX[name]["exit_code"]
    body = [f" {line}" for line in lines_of(name)]
    asked = re.search(r"--query-gpu=(\S+)", INDEX[name]["cmd"])
    if asked:
        body = [f" {_as_survey_asks(line[1:], asked[1].split(','))}" for line in body]
        sections = ["@ smi.query rc=0", *body]
    else:
        sections = [f"@ smi.query rc={code or 2}", *body, f"@ smi.table rc={code}", *body]
    parsed = parse_survey(
        ["sglang-survey 1 0", "@ smi.path rc=0", " /usr/bin/nvidia-smi", *sections, "@ end"], name
    )
    return parsed.nvidia


def _as_survey_asks(row: str, fields: list[str]) -> str:
    cells = dict(zip(fields, (cell.strip() for cell in row.split(",")), strict=True))
    return ", ".join(cells.get(field, "[N/A]") for field in QUERY)


def survey_of(name: str) -> Survey:
    """Return the survey of a host that is healthy but for what the output says."""
    expected = INDEX[name]
    nvidia = nvidia_of(name)
    if expected.get("nvswitch"):
        nvidia = replace(
            nvidia,
            nvswitch=True,
            nvlsm=True,
            fabricmanager="active",
            fabricmanager_version=nvidia.driver_version,
        )
    tegra = bool(expected.get("tegra"))
    host = replace(
        HOST,
        architecture=expected.get("arch", "aarch64" if "gb10" in name else "x86_64"),
        wsl=bool(expected.get("wsl")),
        tegra=tegra,
        l4t_major=38 if tegra else ABSENT,
    )
    return Survey(
        node=name,
        host=host,
        systemd_version=255,
        systemd_state="running",
        nvidia=nvidia,
        docker=docker(nvidia.gpus),
    )


@pytest.mark.parametrize("name", DECIDED)
def test_image_is_the_one_that_the_index_expects(name: str) -> None:
    decision = decide(survey_of(name), *wish())
    assert (decision.cuda_family or "refused") == INDEX[name]["image"], decision


@pytest.mark.parametrize("name", DECIDED)
def test_a_refused_image_says_why(name: str) -> None:
    decision = decide(survey_of(name), *wish())
    if decision.image is None:
        assert decision.kind == "refused"
        assert all(one.seen and one.needed and one.advice for one in decision.refusals)


def test_an_output_that_failed_gives_the_code_of_its_text() -> None:
    codes = {
        name: [one.code for one in decide(survey_of(name), *wish()).refusals]
        for name in DECIDED
        if name.startswith("fail_")
    }
    assert codes == {
        "fail_device_handle": ["GPU_LOST"],
        "fail_mismatch_580": ["DRIVER_MISMATCH"],
        "fail_no_devices": ["NO_GPU_FOUND"],
        "fail_no_driver": ["DRIVER_NOT_LOADED"],
        "fail_no_libnvml": ["DRIVER_LIBRARY_MISSING"],
    }


def test_gpus_with_mig_are_left_out_and_named() -> None:
    decision = decide(survey_of("a100_mig_mixed_535"), *wish())
    assert [one.index for one in decision.gpus] == [1]
    assert [(one.index, "MIG is on" in one.reason) for one in decision.left_out] == [(0, True)]
    assert decision.kind == "image"
    assert decision.image == "lmsysorg/sglang:v0.5.19-cu129"


def test_where_every_gpu_has_mig_on_the_image_is_told_and_the_service_refused() -> None:
    decision = decide(survey_of("h20_mig_570"), *wish())
    assert decision.kind == "refused"
    assert [one.code for one in decision.refusals] == ["NO_USABLE_GPU"]
    assert decision.image == "lmsysorg/sglang:v0.5.19-cu129"
    assert len(decision.left_out) == 3


def test_a_broken_gpu_is_left_out() -> None:
    decision = decide(survey_of("gpu_err_cell"), *wish())
    assert [one.index for one in decision.gpus] == [13]
    assert [(one.index, "ERR!" in one.reason) for one in decision.left_out] == [(14, True)]
