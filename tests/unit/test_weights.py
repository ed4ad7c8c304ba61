"""What is fetched of a hub model, and what a plan says of it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from facts.parsing import parse_survey
from facts.records import HubFiles, Space, Survey
from facts.request import SurveyRequest
from locks.hub import HubCode
from locks.records import Lock, LockedFile
from plans import arguments, paths, scripts
from plans.codes import catalogue
from plans.deployment import TEMPLATES, container_paths
from plans.weights import (
    architecture_failure,
    chosen,
    failure_in,
    weights_to_survey,
)
from plans.wishes import WishesError, read_wishes
from releases.architectures import architectures
from releases.tools.extract_architectures import ExtractError, entry_classes
from tests.played_hub import COMMIT as HUB_COMMIT
from tests.played_hub import Hub, safetensors
from tests.unit.deployments import CAP, COMMIT, applied, codes, fresh, kinds, lock, one, plan
from tests.unit.surveys import wish, wishes
from tests.unit.test_survey_program import SHELLS, run

REPO = "Qwen/Qwen3-8B"
KEY = f"{paths.WEIGHTS}:models--Qwen--Qwen3-8B"
FETCH = Path(__file__).parents[2] / "templates/fetch_weights.py"
SIZES = {"config.json": 700, "model-1.safetensors": 6_000_000_000, "pytorch_model.bin": 7}


def file(path: str, size: int = 1) -> LockedFile:
    """Return a file as a lock has it."""
    sha256 = hashlib.sha256(path.encode()).hexdigest()
    return LockedFile(path=path, size_bytes=size, sha256=sha256)


def locked(**sizes: int) -> Lock:
    """Return the lock with these files of its model."""
    base = lock()
    files = tuple(file(path, size) for path, size in (sizes or SIZES).items())
    models = {key: model.model_copy(update={"files": files}) for key, model in base.models.items()}
    return base.model_copy(update={"models": models})


def with_weights(node: Survey, **changes: Any) -> Survey:
    """Return the survey of a node that has the weights, but for the changes (None: not there)."""
    needed = {path: size for path, size in SIZES.items() if path != "pytorch_model.bin"}
    there = {path: (size, 1000) for path, size in needed.items()}
    marked = {path: (size, 1000, file(path).sha256 or "") for path, size in needed.items()}
    for path, value in changes.items():
        there.pop(path, None) if value is None else there.update({path: value})
    files = HubFiles({COMMIT: marked}, {COMMIT: there})
    return replace(node, weights={KEY: files})


def roomy(free: int = 10**13) -> Survey:
    """Return the survey of a fresh node with so much room for weights."""
    node = fresh()
    space = Space(paths.WEIGHTS, False, "/var/lib", mount="/", free_bytes=free)
    return replace(node, spaces={**node.spaces, paths.WEIGHTS: space})


def told(of: Any) -> str:
    """Return why the only change of weights is made."""
    (change,) = [change for change in of.changes if change.kind == "weights"]
    return str(change.why)


# --- which files


def names(*paths_: str, load_format: str = "auto") -> list[str]:
    return [one.path for one in chosen([file(path) for path in paths_], load_format)]


def test_the_same_weights_in_other_formats_are_left_out() -> None:
    assert names(
        "config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "pytorch_model-00001-of-00002.bin",
        "pytorch_model.bin.index.json",
        "original/consolidated.00.pth",
        "consolidated.safetensors",
        "metal/model.bin",
        "tokenizer.model",
        "q4/model-q4.gguf",
        "configuration_x.py",
        "spk2info.pt",
    ) == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.model",
        "configuration_x.py",
        "spk2info.pt",
    ]


def test_without_safetensors_and_for_another_load_format_everything_is_fetched() -> None:
    for load_format, files in (
        ("auto", ["config.json", "pytorch_model.bin"]),
        ("auto", ["model.gguf"]),
        ("auto", ["config.json", "consolidated.safetensors", "params.json"]),
        ("mistral", ["model.safetensors", "consolidated.safetensors"]),
        ("pt", ["model.safetensors", "pytorch_model.bin"]),
    ):
        assert names(*files, load_format=load_format) == files


# --- the plan


def test_a_node_without_the_weights_fetches_them() -> None:
    made = plan(roomy(), locked=locked())
    assert kinds(made)[:2] == ["weights", "deployment"]
    assert told(made) == f"not in {paths.WEIGHTS} yet: 2 files, 6.0 GB"
    weights = one(made).weights
    assert weights is not None
    assert weights.fetch
    assert [f.path for f in weights.files] == ["config.json", "model-1.safetensors"]


def test_a_node_that_has_them_changes_nothing() -> None:
    node = applied(plan(roomy(), locked=locked()), roomy())
    made = plan(with_weights(node), locked=locked())
    assert made.converged
    assert one(made).weights is not None
    assert not one(made).weights.fetch  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("path", "now", "why"),
    [
        ("config.json", None, "1 of 2 files are not in /var/lib/sglang/hub: 700 B"),
        ("config.json", (699, 1000), "1 of 2 files are not in /var/lib/sglang/hub: 700 B"),
        (
            "model-1.safetensors",
            (6_000_000_000, 1001),
            "1 of 2 files in /var/lib/sglang/hub are not proven: 6.0 GB to hash",
        ),
    ],
)
def test_a_file_that_went_or_changed_is_one_change_without_a_restart(
    path: str, now: tuple[int, int] | None, why: str
) -> None:
    node = applied(plan(roomy(), locked=locked()), roomy())
    made = plan(with_weights(node, **{path: now}), locked=locked())
    assert kinds(made) == ["weights"]
    assert told(made) == why


def test_another_commit_in_the_lock_is_fetched() -> None:
    node = with_weights(applied(plan(roomy(), locked=locked()), roomy()))
    other = locked()
    models = {k: m.model_copy(update={"commit": "d2" * 20}) for k, m in other.models.items()}
    made = plan(node, locked=other.model_copy(update={"models": models}))
    assert "weights" in kinds(made)
    assert "restart" in kinds(made)


def test_no_room_for_the_weights_is_refused_and_what_has_come_is_counted() -> None:
    made = plan(roomy(5_000_000_000), locked=locked())
    (refusal,) = made.refusals
    assert refusal.code == "DISK_FULL"
    assert refusal.seen == "5.0 GB free on / for the weights in /var/lib/sglang/hub"
    assert refusal.needed == "6.0 GB for what Qwen/Qwen3-8B lacks there"
    checksum = file("model-1.safetensors").sha256 or ""
    part = HubFiles(parts={checksum: 2_000_000_000})
    assert not plan(replace(roomy(5_000_000_000), weights={KEY: part}), locked=locked()).refusals


def test_room_that_could_not_be_read_is_said() -> None:
    node = fresh()
    unread = {path: space for path, space in node.spaces.items() if path != paths.WEIGHTS}
    made = plan(replace(node, spaces=unread), locked=locked())
    assert "SPACE_UNKNOWN" in [one.code for one in made.cautions]
    assert not made.refusals


def test_a_local_model_has_no_weights_to_fetch() -> None:
    wanted = wishes(CAP | {"model": "/srv/models/qwen"})
    assert one(plan(wanted=wanted)).weights is None
    assert weights_to_survey(wanted) == ()
    assert weights_to_survey(wishes({})) == (KEY,)
    assert weights_to_survey(None) == ()


def test_the_service_runs_offline_and_reads_only() -> None:
    made = one(plan(roomy(), locked=locked()))
    texts = {file.path.rsplit("/", 1)[1]: file.text for file in made.files}
    assert "HF_HUB_OFFLINE=1" in texts["container.env"]
    assert "HF_ENDPOINT" not in texts["container.env"]
    # Where transformers copies a model's own code: not among the weights.
    assert f"HF_MODULES_CACHE={paths.CACHES}/" in texts["container.env"]
    assert f"--volume={paths.WEIGHTS}:{paths.WEIGHTS}:ro" in texts["launch.env"]
    assert "hub-token" not in "".join(texts.values())


def test_another_model_that_an_argument_names_must_be_on_the_node() -> None:
    draft = {"arguments": {"speculative_draft_model_path": "lmsys/Draft"}}
    adapter = {"arguments": {"lora-paths": ["mine=me/Adapter", "/srv/adapter"]}}
    for more, repo in ((draft, "lmsys--Draft"), (adapter, "me--Adapter")):
        for model in ("Qwen/Qwen3-8B", "/srv/models/qwen"):
            wanted = wishes(CAP | more | {"model": model})
            key = f"{paths.WEIGHTS}:models--{repo}"
            assert key in weights_to_survey(wanted)
            made = plan(roomy(), wanted)
            assert "HUB_ARGUMENT" in codes(made)
            there = HubFiles(there={"ab" * 20: {"config.json": (1, 1)}})
            made = plan(replace(roomy(), weights={key: there}), wanted)
            assert "HUB_ARGUMENT" not in codes(made)
            launch = one(made).launch
            assert launch is not None
            assert container_paths(launch)[paths.WEIGHTS] is False
    own = wishes(CAP | {"arguments": {"tokenizer-path": "/srv/x"}, "model": "/srv/models/qwen"})
    assert not plan(roomy(), own).refusals
    assert weights_to_survey(own) == ()


def test_every_code_of_the_programs_and_of_the_hub_is_explained() -> None:
    texts = [path.read_text() for path in TEMPLATES.glob("*_weights.py")]
    raised = {code for text in texts for code in re.findall(r'Failed\(\s*"([A-Z_]+)"', text)}
    assert {"HUB_GATED", "WEIGHTS_DAMAGED", "WEIGHTS_UNREADABLE"} <= raised
    missing = [
        one
        for one in {*raised, *get_args(HubCode), "ARCHITECTURE_UNKNOWN"}
        if one not in catalogue()
    ]
    assert missing == []


# --- the survey, as the program leaves things


@pytest.mark.parametrize("shell", SHELLS.values(), ids=SHELLS)
def test_what_the_fetch_has_marked_the_survey_and_the_plan_take_as_there(
    shell: list[str], tmp_path: Path
) -> None:
    files = {"config.json": b"{}", "model.safetensors": safetensors(1000), "a/b c.txt": b"\n"}
    hub = Hub("Qwen/Qwen3-8B", files)
    home = tmp_path / "hub"
    for path, body in files.items():
        place = home / "hub/models--Qwen--Qwen3-8B/snapshots" / HUB_COMMIT / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(body)
    blobs = home / "hub/models--Qwen--Qwen3-8B/blobs"
    blobs.mkdir()
    (blobs / f"{'ab' * 32}.part").write_bytes(b"12345")
    # All is there: the hub is asked for nothing.
    job = tmp_path / "job.json"
    job.write_text(
        json.dumps(
            {
                "repo": hub.repo,
                "commit": HUB_COMMIT,
                "home": str(home),
                "marker": paths.weights_mark(str(home), hub.repo, HUB_COMMIT),
                "parallel": 1,
                "files": hub.listed(),
            }
        )
    )
    subprocess.run([sys.executable, str(FETCH), str(job)], check=True, capture_output=True)
    key = f"{home}:models--Qwen--Qwen3-8B"
    output, _ = run(shell, SurveyRequest(weights=(key, f"{tmp_path}/none:models--x")))
    seen = parse_survey(output.split("\n"), "box").weights
    assert seen[f"{tmp_path}/none:models--x"] == HubFiles()
    assert seen[key].parts == {"ab" * 32: 5}
    assert set(seen[key].there[HUB_COMMIT]) == set(files)
    models = {
        k: m.model_copy(
            update={
                "commit": HUB_COMMIT,
                "files": tuple(
                    LockedFile(path=p, size_bytes=n, sha256=s, git_blob=g)
                    for p, n, s, g in hub.listed()
                ),
            }
        )
        for k, m in lock().models.items()
    }
    wanted = read_wishes(
        {"services": [{"name": "chat", "model": REPO, **CAP}], "paths": {"weights": str(home)}},
        "box",
    )
    made = plan(
        replace(fresh(), weights=seen), wanted, lock().model_copy(update={"models": models})
    )
    assert "weights" not in kinds(made)
    os.utime(home / "hub/models--Qwen--Qwen3-8B/snapshots" / HUB_COMMIT / "config.json", (1, 1))
    output, _ = run(shell, SurveyRequest(weights=(key,)))
    node = replace(fresh(), weights=parse_survey(output.split("\n"), "box").weights)
    made = plan(node, wanted, lock().model_copy(update={"models": models}))
    assert told(made).startswith("1 of 3 files in ")


# --- the programs' words


def test_the_token_goes_to_the_fetch_alone_and_never_as_a_word() -> None:
    made = one(plan(roomy(), locked=locked()))
    fetch, check = scripts.fetch_weights(made), scripts.check_weights(made)
    assert "HF_TOKEN_PATH=/run/hub-token" in fetch
    assert "hub-token" not in check
    assert "HF_TOKEN=" not in fetch


def test_the_check_has_the_flags_of_the_service_but_no_gpu_port_or_network() -> None:
    made = one(plan(roomy(), locked=locked()))
    assert made.launch is not None
    launch = made.launch
    mounts = {paths.WEIGHTS: False}
    whole = arguments.container_arguments(
        launch.service, launch.decision, paths.Deployment("chat", 1), mounts
    )
    words = arguments.check_arguments(launch.service, launch.decision, mounts)
    access = launch.decision.access
    assert access is not None
    gone = [word for word in whole if word not in words]
    assert [word for word in gone if word not in access.arguments] == [
        "--env-file=/var/lib/sglang/deployments/chat/1/container.env",
        "--network=bridge",
    ]
    assert "--cap-drop=ALL" in words
    assert "--network=none" in words
    assert [word for word in words if word.startswith("--network")] == ["--network=none"]


def test_the_endpoint_of_the_hub_goes_to_the_fetch() -> None:
    wanted = read_wishes(
        {
            "services": [{"name": "chat", "model": REPO, **CAP}],
            "hub": {"endpoint": "https://mirror.example.org/hub/", "parallel": 3},
        },
        "box",
    )
    made = one(plan(roomy(), wanted, locked()))
    assert "--env=HF_ENDPOINT=https://mirror.example.org/hub" in scripts.fetch_weights(made)
    assert "HF_ENDPOINT" not in scripts.check_weights(made)


@pytest.mark.parametrize(
    ("hub", "message"),
    [
        ({"endpoint": "mirror.example.org"}, "hub.endpoint: is no address of a hub"),
        ({"endpoint": "https://user:key@mirror.example.org"}, "without user or key"),
        ({"endpoint": "https://mirror.example.org/?a=b"}, "hub.endpoint: is no address"),
        ({"endpoint": "https://mirror.example.org/ x"}, "hub.endpoint: is no address"),
        ({"parallel": 0}, "hub.parallel: is 0"),
        ({"parallel": True}, "hub.parallel: is True"),
        ({"paralel": 2}, "hub.paralel: is no key of ours: write parallel"),
    ],
)
def test_a_hub_that_is_none_is_refused(hub: dict[str, Any], message: str) -> None:
    data = {"services": [{"name": "chat", "model": REPO, **CAP}], "hub": hub}
    with pytest.raises(WishesError) as caught:
        read_wishes(data, "box")
    assert message in str(caught.value)


# --- what a check said


def said(*named: str, config: bool = True) -> list[str]:
    seen = {"files": 1, "bytes": 1, "has_config": config, "architectures": list(named)}
    return ["docker says something", f"@weights {json.dumps(seen)}"]


def test_an_architecture_that_the_release_does_not_know_is_refused_with_ways_out() -> None:
    service, _ = wish({})
    assert architecture_failure(said("Qwen3ForCausalLM"), service, "0.5.22", {}) is None
    failure = architecture_failure(said("Qwen99ForCausalLM"), service, "0.5.22", {})
    assert failure is not None
    assert failure.code == "ARCHITECTURE_UNKNOWN"
    assert "SGLang 0.5.22 has no code for Qwen99ForCausalLM" in failure.sentence
    assert "'model-impl': 'transformers'" in failure.sentence


@pytest.mark.parametrize(
    ("lines", "server", "environment"),
    [
        (said("Qwen99ForCausalLM"), {"model-impl": "transformers"}, {}),
        (said("Qwen99ForCausalLM"), {}, {"SGLANG_EXTERNAL_MODEL_PACKAGE": "mine"}),
        (said(), {}, {}),  # SGLang goes by the model's type
        (said("Qwen99ForCausalLM", config=False), {}, {}),
        (said("Gemma3TextModel"), {}, {}),
        (["nothing was said"], {}, {}),
    ],
)
def test_what_something_else_serves_is_not_refused(
    lines: list[str], server: dict[str, Any], environment: dict[str, str]
) -> None:
    service, _ = wish({"environment": environment})
    assert architecture_failure(lines, service, "0.5.22", server) is None


def test_a_failure_is_read_from_what_was_printed() -> None:
    failure = failure_in(["1 of 2", "@failed HUB_GATED it is gated: log in", "more"])
    assert str(failure) == "HUB_GATED: it is gated: log in"
    assert failure_in(["all is well"]) is None


@pytest.mark.parametrize("version", ["0.5.19", "0.5.22", "0.5.23"])
def test_every_release_has_its_architectures(version: str) -> None:
    found = architectures(version)
    assert found is not None
    assert {"LlamaForCausalLM", "Qwen2ForCausalLM", "DeepseekV3ForCausalLM"} <= found
    assert not any(name.startswith("Transformers") for name in found)
    assert len(found) > 200
    assert architectures("9.9.9") is None


def test_entry_classes_are_read_in_each_of_their_forms() -> None:
    assert entry_classes("EntryClass = A") == {"A"}
    assert entry_classes("EntryClass = [A, B]\nEntryClass: list = [C]\nEntryClass += [D]") == {
        "A", "B", "C", "D",
    }  # fmt: skip
    assert entry_classes("x = 1") == set()
    with pytest.raises(ExtractError):
        entry_classes("EntryClass = f()")
