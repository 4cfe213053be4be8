"""Start the servers and workers of a job on one machine, and keep them running."""

from monolith.launch.job_commands import JobCommands
from monolith.launch.job_status import JobEnd, JobStatus, RoleState, RoleStatus
from monolith.launch.job_view import JobView, View
from monolith.launch.rank_job import RankCommands, RankJob
from monolith.launch.role_process import Role
from monolith.launch.run_folder import RunFolder, folder_state
from monolith.launch.supervisor import Policy, Supervisor

__all__ = [
    "JobCommands",
    "JobEnd",
    "JobStatus",
    "JobView",
    "Policy",
    "RankCommands",
    "RankJob",
    "Role",
    "RoleState",
    "RoleStatus",
    "RunFolder",
    "Supervisor",
    "View",
    "folder_state",
]
