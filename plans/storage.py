"""Models on network storage: a start from there is slow in a way that has a flag against it."""

from __future__ import annotations

from facts.records import Space, Survey, known
from plans.refusals import Caution
from plans.wishes import Service, Wishes
from releases.table import get_release

NETWORK = ("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "beegfs", "gpfs", "9p", "wekafs")
"""File systems that are reached over a network, as /proc/mounts names them; those of FUSE
(JuiceFS, GCS, S3) begin with ``fuse.``."""

FLAGS = ("weight-loader-prefetch-checkpoints", "weight-loader-disable-mmap")
"""Flags that read weights otherwise than page by page through a memory map: 704 GB were not
loaded after 20 minutes from Lustre (https://github.com/sgl-project/sglang/issues/37806), and a
load took 258 s with and 32 s without (https://github.com/sgl-project/sglang/issues/7469)."""


def network_space(survey: Survey, wishes: Wishes, service: Service) -> Space | None:
    """Return where a service's model lies, if that is known to be reached over a network."""
    space = survey.spaces.get(service.model if service.is_local else wishes.paths.weights)
    if space is None or not known(space.file_system):
        return None
    kind = space.file_system
    return space if kind in NETWORK or kind.startswith("fuse.") else None


def storage_cautions(
    survey: Survey, wishes: Wishes, service: Service, release: str | None
) -> list[Caution]:
    """Return what to know of where a service's model lies; empty where nothing is to be said."""
    space = network_space(survey, wishes, service)
    if space is None or release is None:
        return []
    given = {name.lstrip("-").replace("_", "-") for name in service.arguments}
    there = [flag for flag in FLAGS if flag in get_release(release).flags]
    if given & set(FLAGS) or not there:
        return []
    text = (
        f"{space.path} is on network storage ({space.file_system}): a large model may load very slowly through a "
        f"memory map; try {' or '.join(f'{flag}: True' for flag in there)} in arguments"
    )
    return [Caution("NETWORK_STORAGE", text, service.name)]
