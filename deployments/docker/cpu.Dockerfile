# Every part of klear but vLLM on a machine without GPUs. Build from the root of the repository:
#   docker build -f deployments/docker/cpu.Dockerfile -t klear:cpu .
# The lock means PyTorch's CPU build, which its own index serves and PyPI does not. A mirror of both:
#   --build-arg PIP_INDEX_URL=… --build-arg PIP_EXTRA_INDEX_URL=…
FROM python:3.11-slim-bookworm

ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1 \
    KLEAR_HOME=/var/lib/klear

# The judge's sandbox needs these three; versions are Debian's, which are frozen with the base image.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap firejail libseccomp2 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/klear
COPY requirements-cpu.lock ./
# PyPI's torch of this version is the one for CUDA: it installs without its libraries and does not import.
RUN pip install --no-deps -r requirements-cpu.lock \
    && python -c "import torch; assert not torch.version.cuda, torch.__version__"
COPY . .
RUN pip install --no-deps --no-build-isolation -e .

# An unprivileged user owns the results; programs of models run below it, in the sandbox.
RUN useradd --create-home --uid 1000 klear && mkdir -p /var/lib/klear && chown klear /var/lib/klear
USER 1000:1000
VOLUME /var/lib/klear

ENTRYPOINT ["klear"]
CMD ["--help"]
