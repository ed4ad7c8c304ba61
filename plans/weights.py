"""A model's weights: what of it is fetched, what is on the node already, what a check says.

The programs that fetch and check run on the node before anything is switched
(``templates/fetch_weights.py``, ``templates/check_weights.py``); here is what decides.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from facts.records import HubFiles, Survey, known
from locks.records import LockedFile, LockedModel
from locks.references import is_hub_name
from plans import paths, text
from plans.findings import Findings
from plans.plan import Weights
from plans.refusals import Caution
from plans.wishes import Service, Wishes
from releases.architectures import architectures
from releases.yaml_text import read_yaml

FAILED_MARK = "@failed "
"""Begins the line by which a program for weights says why it failed: code and sentence."""

SEEN_MARK = "@weights "
"""Begins the line by which the check says what it saw, as JSON."""


@cache
def _data() -> Mapping[str, Any]:
    file = Path(__file__).with_name("data") / "weights.yaml"
    data: Mapping[str, Any] = read_yaml(file.read_text(encoding="utf-8"))
    return data


def chosen(files: Iterable[LockedFile], load_format: str = "auto") -> tuple[LockedFile, ...]:
    """Return the files of a hub model that are fetched: all but the same weights in other formats.

    ``load_format`` is the server's argument of that name. What is left out, and why, is data.
    """
    every = tuple(files)
    left_out = [one["pattern"] for one in _data()["left_out"]]
    kept = tuple(
        file
        for file in every
        if not any(
            fnmatch.fnmatchcase(file.path if "/" in one else file.path.rsplit("/", 1)[-1], one)
            for one in left_out
        )
    )
    safetensors = any("/" not in f.path and f.path.endswith(".safetensors") for f in kept)
    return kept if safetensors and load_format in _data()["read_as_safetensors"] else every


def weights_to_survey(wishes: Wishes | None) -> tuple[str, ...]:
    """Return the hub models whose files a survey looks for, as ``SurveyRequest.weights`` has them."""
    if wishes is None:
        return ()
    home = wishes.paths.weights
    repos = [one.model for one in wishes.services if not one.is_local]
    repos += [repo for one in wishes.services for repo in named_by_arguments(one).values()]
    return tuple(dict.fromkeys(f"{home}:{paths.hub_cache_of(repo)}" for repo in repos))


def named_by_arguments(service: Service) -> dict[str, str]:
    """Return the other models of the hub that a service's arguments name, by the flag's name."""
    found = {}
    for name, value in service.arguments.items():
        flag = name.lstrip("-").replace("_", "-")
        if flag not in _data()["named_by"]:
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            # An adapter may be given a name: NAME=MODEL.
            repo = str(one).rpartition("=")[2]
            if "/" in repo and repo != service.model and is_hub_name(repo):
                found[flag] = repo
    return found


def check_other_models(service: Service, wishes: Wishes, survey: Survey, found: Findings) -> None:
    """Refuse where an argument names a model of the hub that is not on the node."""
    home = wishes.paths.weights
    for flag, repo in named_by_arguments(service).items():
        there = survey.weights.get(f"{home}:{paths.hub_cache_of(repo)}") or HubFiles()
        if not there.there:
            found.refuse(
                "HUB_ARGUMENT",
                service.name,
                f"{flag} names {repo}, a model of the hub that is not in {home}",
                "every model on the node: the service itself asks the hub nothing",
                f"fetch it there with the hub's own client: HF_HOME={home} hf download {repo}",
            )


def planned_weights(
    service: Service, wishes: Wishes, model: LockedModel | None, survey: Survey, found: Findings
) -> Weights | None:
    """Return a hub model's files as they should be on the node; None for a local model.

    Adds the change where something is to fetch, and refuses where there is no room for it.
    """
    if model is None:
        return None
    home = wishes.paths.weights
    files = chosen(model.files, _load_format(service))
    there = survey.weights.get(f"{home}:{paths.hub_cache_of(model.repo)}") or HubFiles()
    seen = there.there.get(model.commit, {})
    missing = [file for file in files if seen.get(file.path, (-1, 0))[0] != file.size_bytes]
    open_ones = unproven(files, model.commit, there)
    weights = Weights(model.repo, model.commit, home, files, fetch=bool(open_ones))
    if not open_ones:
        return weights
    found.change(
        service.name,
        "weights",
        f"{model.repo}@{model.commit[:12]}",
        _why(files, missing, open_ones, home),
    )
    needed = sum(f.size_bytes - there.parts.get(f.sha256 or f.git_blob or "", 0) for f in missing)
    if needed > 0:
        _check_room(service, model, home, needed, survey, found)
    return weights


def _load_format(service: Service) -> str:
    for name, value in service.arguments.items():
        if name.lstrip("-").replace("_", "-") == "load-format":
            return str(value)
    return "auto"


def unproven(files: Iterable[LockedFile], commit: str, there: HubFiles) -> list[LockedFile]:
    """Return the files of a commit that are missing, have changed, or were never checked."""
    marked, seen = there.marked.get(commit, {}), there.there.get(commit, {})
    return [file for file in files if not _is_proven(file, marked, seen)]


def _is_proven(
    file: LockedFile,
    marked: Mapping[str, tuple[int, int, str]],
    seen: Mapping[str, tuple[int, int]],
) -> bool:
    """Whether a file was found good, and is still as it was then."""
    size, changed, checksum = marked.get(file.path, (-1, -1, ""))
    return (
        size == file.size_bytes
        and checksum == (file.sha256 or file.git_blob)
        and seen.get(file.path) == (size, changed)
    )


def _why(
    files: tuple[LockedFile, ...],
    missing: list[LockedFile],
    unproven: list[LockedFile],
    home: str,
) -> str:
    def told(some: Iterable[LockedFile]) -> str:
        return text.size(sum(file.size_bytes for file in some))

    if len(missing) == len(files):
        return f"not in {home} yet: {len(files)} files, {told(files)}"
    if missing:
        return f"{len(missing)} of {len(files)} files are not in {home}: {told(missing)}"
    return (
        f"{len(unproven)} of {len(files)} files in {home} are not proven: {told(unproven)} to hash"
    )


def _check_room(
    service: Service, model: LockedModel, home: str, needed: int, survey: Survey, found: Findings
) -> None:
    space = survey.spaces.get(home)
    if space is None or not known(space.free_bytes):
        found.cautions.append(
            Caution("SPACE_UNKNOWN", f"free space of {home} could not be read", service.name)
        )
    elif space.free_bytes < needed:
        found.refuse(
            "DISK_FULL",
            service.name,
            f"{text.size(space.free_bytes)} free on {space.mount} for the weights in {home}",
            f"{text.size(needed)} for what {model.repo} lacks there",
            "make room, or set paths.weights to a directory on a larger disk",
        )


# --- what the programs said


@dataclass(frozen=True)
class Failure:
    """Why weights cannot be served: a stable code and a sentence."""

    code: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.code}: {self.sentence}"


def failure_in(lines: Iterable[str]) -> Failure | None:
    """Return why a program for weights failed, or None where it did not say."""
    for line in lines:
        if line.startswith(FAILED_MARK):
            code, _, sentence = line.removeprefix(FAILED_MARK).partition(" ")
            return Failure(code, sentence)
    return None


def architecture_failure(
    lines: Iterable[str], service: Service, release: str, server: Mapping[str, Any]
) -> Failure | None:
    """Return why the release cannot serve what a check saw, or None where it can.

    ``server`` are the server's arguments. The release has code of its own for the model, or the
    operator said what runs it instead: transformers' (``model-impl``) or a package of theirs.
    """
    known_here = architectures(release)
    seen = _seen(lines)
    if known_here is None or seen is None or not seen.get("has_config"):
        return None
    named = [str(one) for one in seen.get("architectures") or ()]
    if not named or known_here & set(named):
        # Where config.json names none SGLang derives it from the model's type.
        return None
    if str(server.get("model-impl", "auto")).lower() not in ("auto", "sglang"):
        return None
    if "SGLANG_EXTERNAL_MODEL_PACKAGE" in service.environment:
        return None
    return Failure(
        "ARCHITECTURE_UNKNOWN",
        f"SGLang {release} has no code for {', '.join(named)}, which config.json of "
        f"{service.model} names. Name a release that has, or let transformers' own code run it, "
        "where there is one: arguments: {'model-impl': 'transformers'}.",
    )


def _seen(lines: Iterable[str]) -> Mapping[str, Any] | None:
    for line in lines:
        if line.startswith(SEEN_MARK):
            try:
                seen = json.loads(line.removeprefix(SEEN_MARK))
            except ValueError:
                return None
            return seen if isinstance(seen, dict) else None
    return None
