# One image for every process of ours; docker-compose.yml says which one a container runs.
FROM node:24-bookworm-slim AS ui
WORKDIR /src/frontend
COPY frontend/package.json frontend/package-lock.json ./
RUN npm ci --no-audit --no-fund
COPY frontend/ ./
RUN npm run build

FROM python:3.11-slim-bookworm
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 VAR_DIR=/var/lib/grafthouse
WORKDIR /srv/grafthouse
COPY requirements.txt constraints.txt ./
# Triton compiles its launcher with the C compiler of the machine that it runs on.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && pip install --requirement requirements.txt --constraint constraints.txt
COPY manage.py CHANGELOG.md ./
COPY kernels/ kernels/
COPY inference/ inference/
COPY tenants/ tenants/
COPY adapters/ adapters/
COPY gateway/ gateway/
COPY demo/ demo/
COPY --from=ui /src/frontend/dist frontend/dist
RUN useradd --system --uid 10001 --home-dir /var/lib/grafthouse --create-home grafthouse \
    && mkdir -p /var/lib/grafthouse/adapters /var/lib/grafthouse/models \
    && chown -R grafthouse /var/lib/grafthouse
USER grafthouse
