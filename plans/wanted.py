"""What a lock must have for some wishes: every image and model they may come to."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from plans.wishes import Wishes
from releases.table import UnknownRelease, get_release, releases_for


def images_wanted(all_wishes: Iterable[Wishes]) -> tuple[str, ...]:
    """Return the image tags that these wishes may come to, each once, sorted.

    Where no release is named it depends on a node's driver: the newest image
    of each CUDA family is wanted then. The wheel runtime wants none.
    """
    wanted: set[str] = set()
    for wishes in all_wishes:
        for service in wishes.services:
            if wishes.runtime_of(service) == "wheel":
                continue
            image, release = wishes.image_of(service), wishes.release_of(service)
            if image is not None:
                wanted.add(image)
            elif release is not None:
                # A release that nobody knows has no image: the plan of its node refuses it.
                with suppress(UnknownRelease):
                    wanted |= {one.tag for one in get_release(release).images}
            else:
                for family in ("cuda13", "cu129"):
                    of_family = releases_for(family)
                    if of_family:
                        wanted |= {i.tag for i in of_family[0].images if i.cuda_family == family}
    return tuple(sorted(wanted))


def models_wanted(all_wishes: Iterable[Wishes]) -> tuple[tuple[str, str], ...]:
    """Return the models of the hub that are wanted, as (repo, revision), each once, sorted."""
    return tuple(
        sorted(
            {
                (service.model, service.revision or "main")
                for wishes in all_wishes
                for service in wishes.services
                if not service.is_local
            }
        )
    )
