# Every part of klear on a machine with NVIDIA GPUs (needs the NVIDIA container toolkit to run):
#   docker build -f deployments/docker/gpu.Dockerfile -t klear:gpu .
# The lock brings the CUDA libraries as packages, so that the base image needs none.
FROM python:3.11-slim-bookworm

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    KLEAR_HOME=/var/lib/klear

# build-essential: Triton compiles a launcher when a kernel is first used.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
       bubblewrap build-essential firejail libseccomp2 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/klear
COPY requirements-gpu.lock ./
RUN pip install -r requirements-gpu.lock \
    && python -c "import torch; assert torch.version.cuda, torch.__version__"
COPY . .
RUN pip install --no-deps --no-build-isolation -e .

RUN useradd --create-home --uid 1000 klear && mkdir -p /var/lib/klear && chown klear /var/lib/klear
USER 1000:1000
VOLUME /var/lib/klear

ENTRYPOINT ["klear"]
CMD ["--help"]
