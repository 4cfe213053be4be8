"""Print a job for Kubernetes or Slurm."""

from monolith.launch.manifests.cluster_job import ClusterJob
from monolith.launch.manifests.kubernetes import KubernetesPlace, kubernetes_objects
from monolith.launch.manifests.slurm import slurm_script
from monolith.launch.manifests.yaml_text import yaml_text

__all__ = ["ClusterJob", "KubernetesPlace", "kubernetes_objects", "slurm_script", "yaml_text"]
