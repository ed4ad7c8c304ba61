"""The lock command and plans with FlashInfer's kernels and an own lock, as whole runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from locks.lockfile import read_lock
from releases.wheels import wheel_lock, write_lock
from tests.fake.command import RECORDED, run
from tests.unit.kernel_index import KEY, kernel_index
from tests.unit.lock_servers import free_port, played

LOCAL = {
    "name": "chat",
    "model": "/srv/models/tiny",
    "output_cap": 8192,
    "runtime": "wheel",
    "release": "0.5.23",
}


def inventory(folder: Path, **more: Any) -> Path:
    """Write an inventory of one node of the wheel runtime, whose model is a path on it."""
    data = {"services": [LOCAL], **more}
    path = folder / "site.py"
    path.write_text(f'nodes = (["@fake/a"], {{"sglang": {data!r}}})\n', encoding="utf-8")
    return path


def test_the_lock_command_asks_flashinfer_s_index_once_and_again_with_refresh(
    tmp_path: Path,
) -> None:
    index = kernel_index()
    with played(index.answer) as server:
        site = inventory(tmp_path, mirrors={"flashinfer": f"http://{server.host}"})
        made = run("lock", site)
        assert made.code == 0, made.err
        assert f"{KEY} for sm100a, sm120f, sm121a, sm80, sm89, sm90a" in made.out
        lock = read_lock(tmp_path / "sglang.lock")
        assert lock is not None
        assert len(lock.kernels[KEY].wheels) == 14
        assert not lock.images
        asked = len(server.asked)
        assert run("lock", site).code == 0
        assert len(server.asked) == asked
        again = run("lock", "--refresh", site, "--json")
        assert len(server.asked) > asked
        assert again.json["lock"]["kernels"][KEY]["index"] == f"http://{server.host}"
    assert "has not moved" in again.err


def test_an_index_that_does_not_answer_is_unresolved_and_no_failure(tmp_path: Path) -> None:
    site = inventory(tmp_path, mirrors={"flashinfer": f"http://127.0.0.1:{free_port()}"})
    made = run("lock", site)
    assert made.code == 0, made.err
    assert f"unresolved: {KEY}: http://127.0.0.1:" in made.err
    (one,) = json.loads((tmp_path / "sglang.lock").read_text().split("\n", 3)[3])["unresolved"]
    assert (one["kind"], one["command"]) == ("kernels", "sglang-node lock TARGET")


def test_what_is_wrong_with_mirrors_or_an_own_lock_ends_with_2_before_any_node(
    tmp_path: Path,
) -> None:
    wrong = inventory(tmp_path, mirrors={"index": "https://me:hunter2@mirror.example.org"})
    ended = run("plan", wrong)
    assert ended.code == 2
    assert "mirrors.index: holds a user or password" in ended.err
    assert "hunter2" not in ended.err + ended.out
    ended = run("plan", inventory(tmp_path, wheel_lock="own.txt"))
    assert ended.code == 2
    assert "wheel_lock: own.txt could not be read: no such file or directory" in ended.err


def test_an_own_lock_beside_the_inventory_says_which_kernels_the_lock_asks_for(
    tmp_path: Path,
) -> None:
    own = wheel_lock("0.5.22", "x86_64")
    assert own is not None
    (tmp_path / "own.txt").write_text(write_lock(own), encoding="utf-8")
    with played(kernel_index("0.7.1+cu130").answer) as server:
        mirrors = {"flashinfer": f"http://{server.host}"}
        made = run("lock", inventory(tmp_path, wheel_lock="own.txt", mirrors=mirrors))
    assert made.code == 0, made.err
    assert "flashinfer-jit-cache==0.7.1+cu130 for sm100a" in made.out


def test_the_plan_says_where_the_lock_departs_in_one_line_and_with_v_why(tmp_path: Path) -> None:
    site = inventory(tmp_path)
    text = site.read_text(encoding="utf-8").replace("@fake/a", "two-l4-no-toolkit")
    site.write_text(text, encoding="utf-8")
    words = ("plan", site, "--survey", RECORDED, "--assume", "driver=580.126.09")
    plain, more = run(*words), run(*words, "-v")
    line = "departs from what a plain install of SGLang 0.5.23 takes: nvidia-cuda-nvcc ==13.0.88"
    assert plain.out.count(line) == more.out.count(line) == 1
    reason = "nvidia-cuda-nvcc ==13.0.88, not ==13.5.37: "
    assert reason not in plain.out
    assert reason in more.out
    assert "! JIT_CACHE_MISSING (chat): " in plain.out
