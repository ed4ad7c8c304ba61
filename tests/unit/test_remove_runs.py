"""The program that takes services away, run by a real shell over a directory of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from plans import paths
from plans.deployment import TEMPLATES, render
from plans.scripts import Take

SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]


def node(root: Path) -> Path:
    """Make what an apply of the services a and b leaves, and programs that say what they do."""
    for name in ("a", "b"):
        deployment = root / "deployments" / name / "1"
        deployment.mkdir(parents=True)
        (root / "hub" / name).mkdir(parents=True)
        (root / "records" / name).mkdir(parents=True)
        (root / "records" / name / "1.json").write_text("{}", encoding="utf-8")
        (root / "caches" / f"build-{name}").mkdir(parents=True)
        (deployment / "record.json").write_text("{}", encoding="utf-8")
        (deployment / "launch.env").write_text(
            f'SGLANG_IMAGE="image-{name}"\nSGLANG_KERNELS="{root}/caches/build-{name}"\n'
            f'SGLANG_WEIGHTS="{root}/hub"\n',
            encoding="utf-8",
        )
        (root / "units" / f"sglang@{name}.service.d").mkdir(parents=True)
        (root / "units" / f"sglang@{name}.service.d" / paths.DROP_IN_NAME).write_text("")
    (root / "units" / "sglang@.service").write_text("", encoding="utf-8")
    bin_ = root / "bin"
    bin_.mkdir()
    for name, text in (
        ("systemctl", f'echo "$*" >> {root}/told; case $* in *MainPID*) echo 0 ;; *) echo inactive ;; esac'),
        ("docker", "exit 1"),
        ("journalctl", "exit 0"),
    ):  # fmt: skip
        (bin_ / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (bin_ / name).chmod(0o755)
    return bin_


def run(root: Path, shell: str, services: tuple[str, ...], take: Take) -> tuple[int, str]:
    """Run the program; return how it ended and what it printed."""
    text = render(
        "remove.sh.j2",
        services=services,
        take=take,
        root=f"{root}/deployments",
        records=f"{root}/records",
        weights=f"{root}/hub",
        caches=f"{root}/caches",
        state=f"{root}/state",
        run=f"{root}/run",
        lock=f"{root}/run/apply.lock",
        drop_ins=f"{root}/units",
        drop_in=paths.DROP_IN_NAME,
        unit_file=f"{root}/units/sglang@.service",
        credentials=f"{root}/etc/credentials",
        keys=f"{root}/etc/credentials/services",
        hub_token=f"{root}/etc/credentials/hub-token",
        hub_token_mark=f"{root}/etc/credentials/hub-token.mark",
        watch=(TEMPLATES / "watch.sh").read_text(encoding="utf-8"),
    )
    done = subprocess.run(
        [shell, "-s"],
        input=text,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{root}/bin:{os.environ['PATH']}"},
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_what_another_service_still_uses_stays(tmp_path: Path, shell: str) -> None:
    node(tmp_path)
    code, out = run(tmp_path, shell, ("a",), Take(weights=True, records=True))
    assert code == 0
    assert not (tmp_path / "deployments/a").exists()
    assert not (tmp_path / "caches/build-a").exists()
    assert not (tmp_path / "records/a").exists()
    for kept in ("deployments/b/1/launch.env", "hub/b", "records/b/1.json", "caches/build-b"):
        assert (tmp_path / kept).exists(), kept
    assert (tmp_path / "units/sglang@.service").exists()
    assert f"{tmp_path}/hub (weights)" in out


@pytest.mark.parametrize("shell", SHELLS)
def test_all_of_it_goes_where_all_is_asked_for(tmp_path: Path, shell: str) -> None:
    node(tmp_path)
    code, _ = run(tmp_path, shell, ("a", "b"), Take(weights=True, records=True))
    assert code == 0
    left = {path.name for path in tmp_path.iterdir()} - {"bin", "told", "units"}
    assert left == set()
    assert list((tmp_path / "units").iterdir()) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_records_are_kept_and_named_where_nobody_asked_for_them(tmp_path: Path, shell: str) -> None:
    node(tmp_path)
    code, out = run(tmp_path, shell, ("a", "b"), Take())
    assert code == 0
    assert (tmp_path / "records/a/1.json").exists()
    assert (tmp_path / "hub/a").exists()
    assert f"{tmp_path}/records (records of deployments)" in out
    # Nothing reloads systemd before the last service is stopped: legacy containers lose GPUs by it.
    told = (tmp_path / "told").read_text(encoding="utf-8")
    assert "--no-reload --quiet disable sglang@a.service" in told.replace(
        "--quiet --no-reload", "--no-reload --quiet"
    )
    assert told.count("daemon-reload") == 1


@pytest.mark.parametrize("shell", SHELLS)
def test_what_cannot_be_taken_away_is_no_success(tmp_path: Path, shell: str) -> None:
    bin_ = node(tmp_path)
    (bin_ / "rm").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    (bin_ / "rm").chmod(0o755)
    code, out = run(tmp_path, shell, ("a",), Take())
    assert code == 1
    assert "not everything could be taken away" in out
