"""Models on network storage: a start from there is slow in a way that has a flag against it."""

from __future__ import annotations

from facts.records import Survey, known
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


def storage_cautions(
    survey: Survey, wishes: Wishes, service: Service, release: str | None
) -> list[Caution]:
    """Return what to know of where a service's model lies; empty where nothing is to be said."""
    path = service.model if service.is_local else wishes.paths.weights
    space = survey.spaces.get(path)
    if space is None or not known(space.file_system) or release is None:
        return []
    kind = space.file_system
    if kind not in NETWORK and not kind.startswith("fuse."):
        return []
    given = {name.lstrip("-").replace("_", "-") for name in service.arguments}
    there = [flag for flag in FLAGS if flag in get_release(release).flags]
    if given & set(FLAGS) or not there:
        return []
    text = (
        f"{path} is on network storage ({kind}): a large model may load very slowly through a "
        f"memory map; try {' or '.join(f'{flag}: True' for flag in there)} in arguments"
    )
    return [Caution("NETWORK_STORAGE", text, service.name)]
