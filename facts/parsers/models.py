"""Models on the node: config.json and sizes of weights, of the paths that were asked for."""

from __future__ import annotations

import re

from facts import fields
from facts.records import ABSENT, ModelFiles, Unknown
from facts.sections import NO_SUCH, Section, Sections

TOO_LARGE = 27
"""Exit code of survey.sh for a config.json that is larger than any real one (EFBIG)."""

_SIZE = re.compile(r"size (\d{1,18}) (/.+)", re.ASCII)


def parse_models(sections: Sections) -> dict[str, ModelFiles]:
    """Return the models of the survey, by path as asked."""
    configs = {one.out[0]: one for one in sections.all("model.config") if one.out}
    found = {}
    for section in sections.all("model"):
        if section.out and section.out[0].startswith("/"):
            path = section.out[0]
            found[path] = _model(path, section, configs.get(path))
    for part in sections.unfinished:
        # "model-3 model /srv/models/x": a dead network mount, in most cases.
        words = part.split(" ", 2)
        if len(words) == 3 and words[1] == "model":
            late = Unknown("unreadable", "did not return in time")
            there = found.get(words[2], ModelFiles(words[2], late, late, late, late))
            found[words[2]] = ModelFiles(
                there.path, there.exists, late, there.index_bytes, there.sizes, there.mistral_form
            )
    return found


def _model(path: str, section: Section, config: Section | None) -> ModelFiles:
    if section.rc == NO_SUCH:
        return ModelFiles(path, exists=False)
    if section.failure is not None:
        why = section.failure
        return ModelFiles(path, True, why, why, why)
    index = next((line for line in section.out if line.startswith("index ")), None)
    sizes = [match for line in section.out if (match := _SIZE.fullmatch(line))]
    return ModelFiles(
        path=path,
        exists=True,
        config=_config(config),
        index_bytes=fields.number("ModelFiles.index_bytes", index),
        sizes={match[2].rsplit("/", 1)[1]: int(match[1]) for match in sizes},
        mistral_form="params.json" in section.out,
    )


def _config(section: Section | None) -> str | Unknown:
    if section is None:
        return ABSENT
    if section.rc == TOO_LARGE:
        return Unknown("malformed", "larger than 1 MiB")
    return section.failure or "\n".join(section.out[1:])
