"""collect and drain as a person runs them, over nodes that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plans import paths
from tests.fake.command import Ended, fake, inventory, recording, run
from tests.unit.collections_ import NOW

NODE = "@fake/a"
THEN = NOW - 100 * 86400


def lines(*more: str, user: int = 0) -> list[str]:
    """Return what a node says that keeps four deployments of chat, of which the last runs."""
    told = [
        "sglang-stock 1",
        f"now\t{NOW}",
        f"user\t{user}\t",
        "service\tchat\t4\t3\t4",
    ]
    for number in (1, 2, 3, 4):
        kernels = f"{paths.CACHES}/{number:016x}"
        told.append(
            f"deployment\tchat\t{number}\t{THEN}\t{THEN}\t1\t1\timage{number}\t\t{kernels}\t4096"
        )
        told.append(f"cache\t{kernels}\t0\t700\t{THEN}\t2000000")
    return [*told, *more, "end"]


def collect(tmp_path: Path, stock: list[str], *words: str, **data: Any) -> Ended:
    responses = {
        "sglang-survey": recording("t4"),
        "sglang-stock": stock,
        ": collect": ["@gone kernel cache|/var/cache/sglang/0000000000000001", "@freed 2000000"],
    }
    host = (NODE, {**fake("a", [])[1], "fake_responses": responses})
    return run("collect", inventory(tmp_path, host, **data), *words)


def test_a_dry_run_says_what_would_go_and_takes_nothing(tmp_path: Path) -> None:
    ended = collect(tmp_path, lines(), "--dry-run")
    assert ended.code == 0
    assert "2 things to collect, 2.0 MB at most" in ended.out
    assert "kernel cache /var/cache/sglang/0000000000000001, 2.0 MB: only deployments" in ended.out
    assert "kept: chat: deployments 2, 3, 4" in ended.out
    assert "collected" not in ended.out


def test_the_inventory_says_how_much_is_kept_and_the_command_line_before_it(
    tmp_path: Path,
) -> None:
    asked = {"collect": {"keep": 1, "older_than_days": 10}}
    ended = collect(tmp_path, lines(), "--dry-run", "--json", **asked)
    assert ended.nodes[NODE]["kept"] == {"chat": [3, 4]}
    ended = collect(tmp_path, lines(), "--dry-run", "--json", "--keep", "3", **asked)
    assert ended.nodes[NODE]["kept"] == {"chat": [2, 3, 4]}
    ended = collect(tmp_path, lines(), "--dry-run", "--json", "--older-than", "20w", **asked)
    assert ended.nodes[NODE]["kept"] == {"chat": [1, 2, 3, 4]}


def test_what_was_freed_is_printed(tmp_path: Path) -> None:
    ended = collect(tmp_path, lines())
    assert ended.code == 0
    assert "1 thing collected, 2.0 MB freed" in ended.out


def test_who_is_not_root_is_refused(tmp_path: Path) -> None:
    ended = collect(tmp_path, lines(user=1000), "--json")
    assert ended.code == 3
    (refusal,) = ended.nodes[NODE]["refusals"]
    assert refusal["code"] == "COLLECT_UNREADABLE"
    assert "--sudo" in refusal["advice"]


def test_half_an_answer_is_a_failure_of_that_node(tmp_path: Path) -> None:
    ended = collect(tmp_path, lines()[:-1], "--json")
    assert ended.code == 1
    assert ended.nodes[NODE]["failures"] == ["the node did not say all of what it keeps"]


def test_an_age_is_a_number_and_a_unit(tmp_path: Path) -> None:
    for word in ("30", "d", "-1d", "3m"):
        assert collect(tmp_path, lines(), "--older-than", word).code == 2


def test_what_is_not_deployed_is_not_drained(tmp_path: Path) -> None:
    host = fake("a", recording("t4"))
    for words in (("drain",), ("stop", "--now", "--yes")):
        ended = run(words[0], inventory(tmp_path, host), *words[1:], "--json")
        assert ended.code == 1
        assert ended.nodes[NODE]["error"]["code"] == "NOT_DEPLOYED"
