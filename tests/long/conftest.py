"""Long proofs, run by hand as root: `scripts/test tests/long`. What they stand on is the node tier's."""

from tests.node.conftest import bridge, lab, mirror, node_cache, node_factory, registry

__all__ = ["bridge", "lab", "mirror", "node_cache", "node_factory", "registry"]
