"""Deprecated flags: server.yaml has the new name, and the plan says so."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from plans.plan import NodePlan
from plans.renames import rewritten
from releases.table import RELEASES, config_accepts, flag_problems, get_release
from tests.unit.deployments import CAP, codes, one, plan
from tests.unit.surveys import wishes


def made(arguments: dict[str, Any]) -> NodePlan:
    """Return the plan of a service with these arguments."""
    return plan(wanted=wishes(CAP | {"arguments": arguments}))


def server(of: NodePlan) -> dict[str, Any]:
    """Return what server.yaml holds."""
    (text,) = (file.text for file in one(of).files if file.path.endswith("server.yaml"))
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def notes(of: NodePlan) -> list[str]:
    """Return what a plan says of deprecated flags."""
    return [c.text for c in of.cautions if c.code == "FLAG_DEPRECATED"]


def test_a_deprecated_switch_becomes_the_flags_that_sglang_names() -> None:
    of = made({"disable_cuda_graph": True})
    assert codes(of) == []
    written = server(of)
    assert written["cuda-graph-backend-decode"] == "disabled"
    assert written["cuda-graph-backend-prefill"] == "disabled"
    assert not any("disable" in name for name in written)
    (said,) = notes(of)
    assert "--disable-cuda-graph is deprecated" in said
    assert "cuda-graph-backend-decode: disabled" in said


def test_dp_attention_takes_the_width_and_the_place_of_dp_size() -> None:
    of = made({"enable-dp-attention": True, "data-parallel-size": 1})
    written = server(of)
    assert written["attn-dp-size"] == 1
    assert not {"dp-size", "data-parallel-size", "enable-dp-attention"} & set(written)
    assert "data-parallel-size" in notes(of)[0]
    arguments, _, _ = rewritten(RELEASES["0.5.22"], {"enable-dp-attention": True, "dp_size": 4})
    assert arguments == {"attn-dp-size": 4}


def test_old_and_new_name_together_are_refused() -> None:
    of = made({"disable-cuda-graph": True, "cuda-graph-backend-decode": "full"})
    assert codes(of) == ["FLAG_DEPRECATED"]
    assert "--cuda-graph-backend-decode, which is given too" in of.refusals[0].seen


def test_a_flag_that_only_says_in_prose_what_to_do_is_refused() -> None:
    release = get_release("0.5.19")
    arguments, renamed, twice = rewritten(release, {"collect-tokens-histogram": True})
    assert (renamed, twice) == ([], [])
    assert [p.severity for p in flag_problems(release, arguments)] == ["refuse"]


def test_a_switch_that_is_off_is_not_rewritten() -> None:
    assert notes(made({"enable-dp-attention": False})) == []


@pytest.mark.parametrize("version", RELEASES)
def test_every_deprecated_flag_that_names_another_is_rewritten_to_one_that_is_there(
    version: str,
) -> None:
    release = RELEASES[version]
    for flag in release.flags.values():
        if not (flag.deprecated or "").startswith("--") or flag.takes == "none":
            continue
        value: Any = True if flag.takes == "switch" else (flag.choices or ("1",))[0]
        value = [1] if flag.takes == "list" else value
        arguments, renamed, twice = rewritten(release, {flag.name: value})
        assert (len(renamed), twice) == (1, []), flag.name
        assert flag.name not in arguments
        for problem in flag_problems(release, arguments):
            # The values of an old flag may have other words: that is only warned of.
            assert problem.severity == "warn", (flag.name, problem.message)
        assert all(new in release.flags for new in arguments)


def test_a_rewritten_flag_reaches_the_server_by_the_file_or_the_line() -> None:
    release = get_release("0.5.19")
    arguments, _, _ = rewritten(release, {"enable-breakable-cuda-graph": True})
    assert arguments == {"cuda-graph-backend-prefill": "breakable"}
    assert not config_accepts(release, "cuda-graph-backend-prefill"), "so it goes on the line"
