"""Classes of a job that do not depend on its flow; see `job.parts`."""
