# attngraft for the CPU: docs/start.md shows how to build and run it.
FROM python:3.12-slim

# CPU wheels first: pip would install the much larger ones for CUDA.
RUN pip install --no-cache-dir torch torchvision --index-url https://download.pytorch.org/whl/cpu

WORKDIR /opt/attngraft
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir ".[data,export,hf]"

# Weights, image checks and fonts are kept in a volume, which any user may write to.
RUN mkdir -m 777 /cache
ENV HF_HOME=/cache/huggingface TORCH_HOME=/cache/torch ATTNGRAFT_CACHE=/cache/attngraft MPLCONFIGDIR=/cache/matplotlib
VOLUME /cache

WORKDIR /work
ENTRYPOINT ["attngraft"]
CMD ["--help"]
