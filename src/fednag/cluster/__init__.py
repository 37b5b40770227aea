"""Several runs on several machines: one task a run, in folders that all machines share."""

from fednag.cluster.ray import OnRay, cluster_at, place
from fednag.cluster.slurm import OnSlurm

__all__ = ["OnRay", "OnSlurm", "cluster_at", "place"]
