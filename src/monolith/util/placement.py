"""Names of the places where parameters and tables live."""

__all__ = ["PS_JOB_NAME", "ps_label"]

PS_JOB_NAME = "ps"
"""Name of the job of parameter servers in a cluster's description."""


def ps_label(index: int) -> str:
    """Label of a parameter server; formatting only.

    Example:
        >>> ps_label(3)
        '/job:ps/task:3/device:CPU:0'
    """
    return f"/job:{PS_JOB_NAME}/task:{index}/device:CPU:0"
