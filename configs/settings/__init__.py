"""Every setting of the pipeline, one module a chapter of the paper."""
