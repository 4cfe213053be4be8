"""Talk to what controls a job from outside."""

from monolith.control.app_master import AppMaster

__all__ = ["AppMaster"]
