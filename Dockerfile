# The server of ostro, for CPUs or for CUDA devices:
#
#   docker build -t ostro .
#   docker build -t ostro:cuda --build-arg TORCH=cu130 .
#   docker run -p 1234:1234 -v ostro:/data ostro serve --host 0.0.0.0 --api-key KEY
#   docker run --gpus all -p 1234:1234 -v ostro:/data ostro:cuda serve --host 0.0.0.0 --api-key KEY
#
# The wheels of torch contain the CUDA libraries; the host provides the driver. g++ compiles the CPU
# kernels when the image is built, for all CPUs; Triton uses it too.
FROM python:3.13-slim

# hadolint ignore=DL3008
RUN apt-get update \
  && apt-get install -y --no-install-recommends g++ \
  && rm -rf /var/lib/apt/lists/*

# The build of torch: cpu, or cu130 and the like for CUDA (`uv pip install --torch-backend`).
ARG TORCH=cpu
COPY . /src
WORKDIR /src
RUN OSTRO_VENV=/opt/ostro OSTRO_TORCH=$TORCH PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 \
  sh install.sh -c constraints.txt .

# /data keeps downloaded models and compiled kernels.
ENV PATH=/opt/ostro/bin:$PATH HF_HOME=/data/huggingface OSTRO_CACHE=/data/ostro \
  TRITON_CACHE_DIR=/data/triton
RUN useradd --uid 1000 --create-home ostro && mkdir /data && chown ostro /data
USER 1000
WORKDIR /data
VOLUME /data
EXPOSE 1234
ENTRYPOINT ["ostro"]
CMD ["run", "-i", "What is 27 + 15?"]
