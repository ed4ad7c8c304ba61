"""The programs of bundles, run by real shells over directories of their own."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from plans import bundle_scripts, paths
from plans.bundle import Bundle, Taken
from plans.bundling import Gathered
from tests.unit.bundles import IMAGE_BYTES, environment, manifest, member

SHELLS = {"dash": ["dash"], "busybox": ["busybox", "sh"], "bash": ["bash"]}
SHELLS = {name: words for name, words in SHELLS.items() if shutil.which(words[0])}
WEIGHTS = {"config.json": b"{}", "model.safetensors": b"w" * 3000}
CONFIG = b'{"architecture": "amd64"}'


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> list[str]:
    """A shell that nodes have."""
    return SHELLS[request.param]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that stands for the node's; a Docker that says what it was asked."""
    monkeypatch.setattr(paths, "BUNDLES", f"{tmp_path}/bundles")
    monkeypatch.setattr(paths, "BUNDLE_WORK", f"{tmp_path}/bundles/making")
    monkeypatch.setattr(paths, "OPT", f"{tmp_path}/opt")
    for name in ("PYTHONS", "TOOLS"):
        monkeypatch.setattr(paths, name, f"{tmp_path}/opt/{name.lower()}")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    saved = tmp_path / "saved.tar"
    (bin_ / "docker").write_text(
        "#!/bin/sh\n"
        f'echo "$*" >> {tmp_path}/asked\n'
        "case $1 in\n"
        f"save) cat {saved} ;;\n"
        f"load) grep -q bad {tmp_path}/mood 2>/dev/null && {{ echo 'no space left' >&2; exit 1; }}; : ;;\n"
        'image) case $* in *Size*) echo 1000 ;; *) for last; do :; done; echo "$last" ;; esac ;;\n'
        "esac\n",
        encoding="utf-8",
    )
    (bin_ / "docker").chmod(0o755)
    return tmp_path


def ran(shell: list[str], state: Path, text: str, given: bytes | None = None) -> tuple[int, str]:
    """Run a program; return how it ended and what it printed."""
    words = [*shell, "-c", text] if given is not None else [*shell, "-s"]
    done = subprocess.run(
        words,
        input=given if given is not None else text.encode(),
        capture_output=True,
        env={**os.environ, "PATH": f"{state}/bin:{os.environ['PATH']}"},
    )
    return done.returncode, (done.stdout + done.stderr).decode()


def everything(state: Path) -> Taken:
    """Return what takes an image and weights."""
    found = manifest(WEIGHTS)
    opened = Bundle("site.bundle", found, "a" * 64, 1)
    runs_as = found.images[0].config_digest
    return Taken(opened, found.images[0], runs_as, found.models[0].files, f"{state}/hub/blobs")


def archive(*contents: bytes) -> bytes:
    """Return a tar archive of contents under their names."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for content in contents:
            info = tarfile.TarInfo(member(content).name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def test_what_came_is_checked_and_put_in_its_places(shell: list[str], state: Path) -> None:
    taken = everything(state)
    assert ran(shell, state, bundle_scripts.begin(taken)) == (0, "")
    sent = archive(IMAGE_BYTES, *WEIGHTS.values())
    assert ran(shell, state, bundle_scripts.receive(taken), sent) == (0, "")
    code, out = ran(shell, state, bundle_scripts.place(taken))
    assert (code, out) == (0, "")
    blobs = {path.name: path.read_bytes() for path in (state / "hub/blobs").iterdir()}
    assert blobs == {member(content).sha256: content for content in WEIGHTS.values()}
    assert all(p.stat().st_mode & 0o777 == 0o644 for p in (state / "hub/blobs").iterdir())
    asked = (state / "asked").read_text()
    assert f"load --input {taken.directory}/{member(IMAGE_BYTES).name}" in asked
    assert f"tag {taken.runs_as} sglang-bundle:3333333333333333" in asked
    assert not (state / "bundles").exists()


def test_what_an_earlier_run_brought_is_not_asked_for_again(shell: list[str], state: Path) -> None:
    taken = everything(state)
    ran(shell, state, bundle_scripts.begin(taken))
    ran(shell, state, bundle_scripts.receive(taken), archive(WEIGHTS["model.safetensors"]))
    # A cut file, and one whose content is another.
    (Path(taken.directory) / member(IMAGE_BYTES).name).write_bytes(IMAGE_BYTES[:100])
    (Path(taken.directory) / member(b"{}").name).write_bytes(b"[]")
    code, out = ran(shell, state, bundle_scripts.begin(taken))
    assert (code, out) == (0, f"@have {member(WEIGHTS['model.safetensors']).sha256}\n")
    left = [path.name for path in (Path(taken.directory) / "sha256").iterdir()]
    assert left == [member(WEIGHTS["model.safetensors"]).sha256]


def test_files_of_another_bundle_are_not_kept(shell: list[str], state: Path) -> None:
    (state / "bundles/other/sha256").mkdir(parents=True)
    ran(shell, state, bundle_scripts.begin(everything(state)))
    assert [p.name for p in (state / "bundles").iterdir()] == ["a" * 16]


def test_a_node_without_room_is_one_sentence_and_nothing_is_left(
    shell: list[str], state: Path
) -> None:
    files = [{"path": "a", "checksum": "1" * 64, "content": {"sha256": "1" * 64, "size": 2**60}}]
    found = manifest()
    model = found.models[0].model_validate({**found.models[0].model_dump(), "files": files})
    taken = Taken(Bundle("b", found, "a" * 64, 1), weights=model.files, blobs="/hub")
    code, out = ran(shell, state, bundle_scripts.begin(taken))
    assert code == 1
    assert out.startswith("nothing was sent: ")
    assert not (state / "bundles").exists()


@pytest.mark.parametrize("sent", [[IMAGE_BYTES, b"{}"], [IMAGE_BYTES]])
def test_nothing_is_used_where_one_file_is_not_the_bundle_s(
    shell: list[str], state: Path, sent: list[bytes]
) -> None:
    taken = everything(state)
    ran(shell, state, bundle_scripts.begin(taken))
    ran(shell, state, bundle_scripts.receive(taken), archive(*sent))
    code, out = ran(shell, state, bundle_scripts.place(taken))
    assert code == 75
    assert out.startswith("@refused BUNDLE_DAMAGED ")
    assert not (state / "asked").exists()
    assert not (state / "hub").exists()
    assert not (state / "bundles").exists()


def test_an_image_that_docker_does_not_load_stays_for_the_next_run(
    shell: list[str], state: Path
) -> None:
    taken = everything(state)
    ran(shell, state, bundle_scripts.begin(taken))
    sent = archive(IMAGE_BYTES, *WEIGHTS.values())
    ran(shell, state, bundle_scripts.receive(taken), sent)
    (state / "mood").write_text("bad")
    assert ran(shell, state, bundle_scripts.place(taken)) == (1, "no space left\n")
    assert ran(shell, state, bundle_scripts.begin(taken))[1].count("@have ") == 3


def sent_environment(shell: list[str], state: Path) -> Taken:
    """Send what an environment is built from; return what takes it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        info = tarfile.TarInfo("cpython-3.12.11-linux-x86_64-gnu/bin/python3")
        info.mode, info.size = 0o755, 4
        tar.addfile(info, io.BytesIO(b"real"))
    python = {"name": "cpython-3.12.11-linux-x86_64-gnu"}
    python |= {"content": member(packed.getvalue()).model_dump()}  # type: ignore[dict-item]
    found = manifest(environments=[environment(python=python)])
    taken = Taken(Bundle("b", found, "a" * 64, 1), environment=found.environments[0])
    ran(shell, state, bundle_scripts.begin(taken))
    sent = archive(b"uv", packed.getvalue(), b"idna")
    ran(shell, state, bundle_scripts.receive(taken), sent)
    return taken


@pytest.mark.skipif(os.geteuid() != 0, reason="what root runs is root's")
def test_an_environment_s_files_are_made_ready_for_uv(shell: list[str], state: Path) -> None:
    taken = sent_environment(shell, state)
    for _ in range(2):
        assert ran(shell, state, bundle_scripts.place(taken)) == (0, "")
    assert taken.wheels is not None
    assert (Path(taken.wheels) / "idna-3.15-py3-none-any.whl").read_bytes() == b"idna"
    (uv,) = (state / "opt/tools").iterdir()
    there = state / "opt/pythons/cpython-3.12.11-linux-x86_64-gnu/bin/python3"
    for file, content in ((there, b"real"),):
        assert file.read_bytes() == content
        assert file.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in (state / "opt/pythons").iterdir()] == [there.parts[-3]]
    assert uv.name.startswith("uv-")
    assert ran(shell, state, bundle_scripts.clean(taken.directory)) == (0, "")
    assert not (state / "bundles").exists()


@pytest.mark.parametrize("which", ["opt", "opt/tools", "opt/pythons"])
@pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o755, 65534)])
@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another")
def test_uv_and_python_come_into_no_directory_that_others_may_write_to(
    shell: list[str], state: Path, which: str, mode: int, owner: int
) -> None:
    taken = sent_environment(shell, state)
    for name in ("opt", "opt/tools", "opt/pythons"):
        (state / name).mkdir(mode=0o755)
    (state / which).chmod(mode)
    os.chown(state / which, owner, owner)
    code, out = ran(shell, state, bundle_scripts.place(taken))
    assert code == 75
    assert out.startswith(f"@refused CACHE_NOT_OURS {state}/{which} ")
    assert not list((state / "opt").rglob("*python3"))
    assert not list((state / "opt/tools").iterdir())


def save(state: Path, config: bytes, *, layout: bool) -> str:
    """Write what ``docker save`` gives: as since Docker 25, or before; return the digest."""
    digest = hashlib.sha256(config).hexdigest()
    name = f"blobs/sha256/{digest}" if layout else f"{digest}.json"
    files = {name: config, "manifest.json": json.dumps([{"Config": name}]).encode()}
    if layout:
        index = {"manifests": [{"digest": f"sha256:{'d' * 64}"}]}
        files["index.json"] = json.dumps(index, separators=(",", ":")).encode()
    with tarfile.open(state / "saved.tar", "w") as tar:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return f"sha256:{digest}"


@pytest.mark.parametrize("layout", [True, False])
def test_an_image_is_saved_and_told_by_hash_and_size(
    shell: list[str], state: Path, layout: bool
) -> None:
    image = bundle_scripts.ImageToSave("a/b:1", "a/b@x", save(state, CONFIG, layout=layout))
    small = state / "config.json"
    small.write_text("{}")
    code, out = ran(shell, state, bundle_scripts.gather([image], [str(small)]))
    assert code == 0
    gathered = Gathered()
    gathered.read(out.splitlines())
    saved = (state / "saved.tar").read_bytes()
    assert gathered.files[f"{paths.BUNDLE_WORK}/{image.name}"] == (
        member(saved),
        f"sha256:{'d' * 64}" if layout else None,
    )
    assert gathered.files[str(small)] == (member(b"{}"), None)
    # Again, after a run that was cut: it is not saved a second time.
    assert ran(shell, state, bundle_scripts.gather([image], [str(small)]))[0] == 0
    assert (state / "asked").read_text().count("save ") == 1
    sources = [f"{paths.BUNDLE_WORK}/{image.name}", str(small)]
    done = subprocess.run([*shell, "-c", bundle_scripts.send(sources)], capture_output=True)
    assert done.stdout == saved + b"{}"


def test_an_image_that_is_not_the_locked_one_makes_no_bundle(shell: list[str], state: Path) -> None:
    save(state, CONFIG, layout=True)
    other = "sha256:" + hashlib.sha256(b"other").hexdigest()
    image = bundle_scripts.ImageToSave("a/b:1", "a/b@x", other)
    code, out = ran(shell, state, bundle_scripts.gather([image], []))
    assert (code, out) == (1, "what docker saved is not a/b:1\n")
    assert not (state / "bundles").exists()
