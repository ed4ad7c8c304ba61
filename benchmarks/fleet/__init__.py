"""The same job by three tools, over many hosts: ``python -m benchmarks.fleet``."""
