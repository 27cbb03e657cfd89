"""What SGLang scans (SGLANG_EXTERNAL_MODEL_PACKAGE): model classes and nothing else."""
