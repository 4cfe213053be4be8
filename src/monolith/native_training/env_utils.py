"""Settings that the environment of a job gives."""

from monolith.cluster.discovery.kazoo_client import get_zk_auth_data

__all__ = ["generate_psm_from_uuid", "get_zk_auth_data"]


def generate_psm_from_uuid(uuid: str) -> str:
    """Return the name under which a job registers its processes: its uuid."""
    return uuid
