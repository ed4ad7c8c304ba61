"""Judges the canary: did CUDA start in a container with the unit's flags, on each GPU of the plan?

``templates/canary.py`` runs inside the image and prints what it found;
``plans/data/canary.yaml`` says what each failure means.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from facts.records import known
from plans.deployment import Launch
from plans.gpus import capability_of
from plans.plan import ServicePlan
from plans.refusals import Refusal
from releases.yaml_text import read_yaml

CANARY_LIMIT = 600
"""Seconds after which the canary is given up.

Reading torch and the CUDA libraries (some 6 GB) from the slowest cloud disks, 20 MB/s,
takes 300 s; CUDA's first start on eight GPUs without persistence mode 60 s; and as much
again.
"""

RESULT_MARK = "@canary "
ENDED_MARK = "@ended "
TIMED_OUT = (124, 137)
"""How timeout(1) ends where it ended the program, or had to kill it."""

_NUMBER = re.compile(r"\b[Ee]rror (\d+)\b")


class Rule(BaseModel):
    """What one kind of failure means."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    needed: str
    advice: str
    numbers: tuple[int, ...] = ()
    pattern: str | None = None
    while_serving: bool = False

    def fits(self, text: str) -> bool:
        """Say whether all conditions of the rule hold of what was said."""
        numbers = {int(number) for number in _NUMBER.findall(text)}
        if self.numbers and not numbers & set(self.numbers):
            return False
        return self.pattern is None or re.search(self.pattern, text) is not None


@cache
def rules(file: str = "canary.yaml") -> tuple[Rule, ...]:
    """Return the rules of one file of ``plans/data`` in their order."""
    text = Path(__file__).with_name("data").joinpath(file).read_text(encoding="utf-8")
    return tuple(Rule.model_validate(one) for one in read_yaml(text)["rules"])


@dataclass(frozen=True)
class Expected:
    """What the plan gave the container."""

    service: str
    image: str
    cuda: bool  # else the service runs on the CPU device
    capabilities: tuple[str | None, ...] = ()  # of each GPU; None: not known
    serving: bool = False  # a process of the service runs meanwhile, with its memory


@dataclass(frozen=True)
class Canary:
    """Why the image cannot serve there (nothing: it can), and what else is worth a line."""

    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()


def uses_cuda(launch: Launch) -> bool:
    """Say whether the server will use GPUs: it does unless its arguments say otherwise."""
    return launch.server.get("device") != "cpu"


def expected(plan: ServicePlan) -> Expected:
    """Return what the canary of a plan must find."""
    assert plan.launch is not None
    found = [capability_of(gpu) for gpu in plan.decision.gpus]
    return Expected(
        service=plan.name,
        image=plan.launch.image,
        cuda=uses_cuda(plan.launch),
        capabilities=tuple(one if known(one) else None for one in found),
        serving=plan.guard is not None and plan.guard.main_pid > 0,
    )


def judge(lines: Iterable[str], wanted: Expected) -> Canary:
    """Return what the canary's output means. Never raises for any output.

    ``lines`` are all that the program of ``plans.scripts.canary`` printed.
    """
    printed = [line for line in lines if line.strip()]
    ended = last(printed, ENDED_MARK)
    document = document_of(last(printed, RESULT_MARK))
    if document is not None:
        return Judge(wanted).of(document)
    # Docker's last line only names its help.
    said = [line for line in printed if not line.startswith(("@", "See 'docker"))]
    judged = Judge(wanted)
    if ended is None:
        judged.refuse(
            "CANARY_FAILED",
            "the canary was cut off before it ended",
            "a canary that ends",
            "apply again",
        )
    elif ended in map(str, TIMED_OUT):
        judged.refuse(
            "CANARY_TIMEOUT",
            f"a container of {wanted.image} that tries CUDA did not end in {CANARY_LIMIT} s",
            "CUDA that starts",
            "sudo dmesg | grep -i -e xid -e NVRM; where nothing is there, apply again: what was "
            "read from a slow disk is in memory now",
        )
    else:
        judged.failed(said, f"a container of {wanted.image} ended with {ended}")
    return judged.result


class Judge:
    """Gathers what a canary found wrong: of an image, and for ``plans.wheel.canary`` elsewhere."""

    place = "in the container"
    readable = "files that root may read without special rights"

    def __init__(self, wanted: Expected) -> None:
        self._wanted = wanted
        self._refusals: dict[Refusal, None] = {}
        self._notes: list[str] = []
        self.rules = rules()

    @property
    def result(self) -> Canary:
        return Canary(tuple(self._refusals), tuple(self._notes))

    def refuse(self, code: str, seen: str, needed: str, advice: str) -> None:
        self._refusals[Refusal(code, seen, needed, advice, self._wanted.service)] = None

    def failed(self, said: list[str], what: str) -> None:
        """Refuse for a container that did not come to its end, by what was said of it."""
        for rule in self.rules:
            for line in said:
                if rule.fits(line):
                    self.refuse(rule.code, short(line), rule.needed, rule.advice)
                    return
        told = f": {short(said[-1])}" if said else ""
        self.refuse(
            "CANARY_FAILED",
            f"{what}{told}",
            "a container that runs with the flags of the unit",
            "journalctl -u docker -n 50 on the node",
        )

    def of(self, document: Mapping[str, Any]) -> Canary:
        self._files(document)
        if self._wanted.cuda:
            self._cuda(document)
        if not self._refusals:
            self._imports(document)
        return self.result

    def _files(self, document: Mapping[str, Any]) -> None:
        for line in texts(document.get("unreadable")):
            self.refuse(
                "MODEL_UNREADABLE",
                line,
                self.readable,
                f"sudo chmod -R a+rX {line.rpartition(': ')[0]}; a link that leads out of the "
                "model's directory: put the file itself there",
            )
        for line in texts(document.get("unwritable")):
            self.unwritable(line, line.rpartition(": ")[0])

    def unwritable(self, line: str, path: str) -> None:
        """Refuse for a directory that the server must write."""
        self.refuse(
            "CACHE_UNWRITABLE",
            line,
            "a directory that the container may write",
            f"sudo chown root:root {path}; findmnt -T {path}",
        )

    def _cuda(self, document: Mapping[str, Any]) -> None:
        cuda = mapping(document.get("cuda"))
        library = cuda.get("library")
        if cuda.get("missing") or not cuda:
            self.no_libcuda(f"{self.place}: {cuda.get('missing') or 'CUDA was not asked'}")
            return
        if cuda.get("init") != 0:
            text = f"CUDA error {cuda.get('init')} ({cuda.get('name')}: {cuda.get('text')})"
            self._by_rule(f"{text}, libcuda is {library or 'not known'}")
            return
        torch = mapping(document.get("imports")).get("torch")
        if torch:
            self._imports(document)
            return
        if cuda.get("error"):
            self._by_rule(f"{cuda['error']} (libcuda is {library or 'not known'})")
            return
        self._devices([mapping(one) for one in listed(document.get("devices"))])

    def no_libcuda(self, seen: str) -> None:
        """Refuse for the driver's library, which cannot be loaded."""
        self.refuse(
            "LIBCUDA_MISSING",
            seen,
            f"the driver's libcuda.so.1 {self.place}",
            "ldconfig -p | grep libcuda.so.1; sudo nvidia-ctk cdi generate "
            "--output=/etc/cdi/nvidia.yaml",
        )

    def gpus_missing(self, seen: str) -> None:
        """Refuse for GPUs of the plan that CUDA does not list."""
        self.refuse(
            "GPU_NOT_IN_CONTAINER",
            seen,
            "the GPUs of the plan in the container",
            "nvidia-smi -L; sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        )

    def _devices(self, devices: list[Mapping[str, Any]]) -> None:
        for one in devices:
            where = f"GPU {one.get('index')} ({one.get('name')})"
            if one.get("error"):
                self._by_rule(f"{where}: {one['error']}")
            elif one.get("right") is not True:
                self.refuse(
                    "GPU_WRONG_RESULT",
                    f"{where}: a product of two small matrices came out wrong",
                    "a GPU that computes rightly",
                    "nvidia-smi -q -d ECC,PAGE_RETIREMENT,ROW_REMAPPER; sudo dmesg | grep -i xid",
                )
        wanted = self._wanted.capabilities
        if len(devices) < len(wanted):
            names = ", ".join(str(one.get("name")) for one in devices) or "none"
            self.gpus_missing(
                f"CUDA lists {len(devices)} of {len(wanted)} GPUs {self.place} ({names})"
            )
            return
        there = Counter(str(one.get("capability")) for one in devices if one.get("capability"))
        lacking = Counter(one for one in wanted if one is not None) - there
        if lacking and not self._refusals:
            self.refuse(
                "GPU_NOT_AS_SURVEYED",
                f"compute capability {', '.join(sorted(there))} {self.place}, and "
                f"{', '.join(sorted(lacking))} in the survey",
                "the GPUs that the plan was made for",
                "nvidia-smi -L on the node, then plan and apply again",
            )

    def _imports(self, document: Mapping[str, Any]) -> None:
        for name, why in mapping(document.get("imports")).items():
            self.import_failed(str(name), str(why))

    def import_failed(self, name: str, why: str) -> None:
        """Refuse for a package that does not load."""
        rule = self.rule_for(why)
        if rule is not None:
            self._ruled(rule, f"import {name}: {why}")
            return
        self.refuse(
            "IMAGE_BROKEN",
            f"import {name} failed in {self._wanted.image}: {short(why)}",
            "an image whose own packages load",
            f"docker image rm {self._wanted.image}, then apply; an image of yours: build it "
            "from SGLang's of the same release",
        )

    def rule_for(self, text: str) -> Rule | None:
        """Return the first rule that fits a text."""
        return next((rule for rule in self.rules if rule.fits(text)), None)

    def _by_rule(self, text: str) -> None:
        rule = self.rule_for(text)
        if rule is not None:
            self._ruled(rule, text)
            return
        self.refuse(
            "CUDA_FAILED",
            short(text),
            "CUDA that starts and runs a kernel on each GPU",
            "sudo dmesg | grep -i -e NVRM -e xid on the node",
        )

    def _ruled(self, rule: Rule, text: str) -> None:
        if rule.while_serving and self._wanted.serving:
            self._notes.append(
                f"the canary ran no kernel beside the service that runs now: {short(text)}"
            )
        else:
            self.refuse(rule.code, short(text), rule.needed, rule.advice)


def last(lines: Iterable[str], mark: str) -> str | None:
    """Return what stands behind a mark, in the last line that begins with it."""
    found = [line.removeprefix(mark) for line in lines if line.startswith(mark)]
    return found[-1].strip() if found else None


def document_of(text: str | None) -> Mapping[str, Any] | None:
    """Return a JSON document, or None where the text is none."""
    try:
        document = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def mapping(value: object) -> Mapping[str, Any]:
    """Return a part of a document as a mapping: an empty one where it is none."""
    return value if isinstance(value, dict) else {}


def listed(value: object) -> list[Any]:
    """Return a part of a document as a list: an empty one where it is none."""
    return value if isinstance(value, list) else []


def texts(value: object) -> list[str]:
    """Return a part of a document as texts: none where it is no list."""
    return [str(one) for one in listed(value)]


def short(text: str) -> str:
    """Return a text of a length that a line holds."""
    return text if len(text) <= 400 else f"{text[:397]}..."
