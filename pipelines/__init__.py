"""Model pipelines out of verified kernels."""
