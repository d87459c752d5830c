# One machine, no root, no Docker: `make run` starts the house, `make test` tests all of it.
#   make run PORT=8000 HOST=127.0.0.1 VAR_DIR=var MODEL=<a Hugging Face directory>

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
PYTHON := .venv/bin/python

.PHONY: help run test lint format ui schema bench demo-adapters clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 24

run:  ## start the house and print how to use it (Ctrl-C stops it)
	@scripts/setup run ui
	@exec $(PYTHON) manage.py serve

test:  ## install what the tests need, then lint, types and every test
	@scripts/setup dev node chromium prometheus
	@exec scripts/test

lint:  ## ruff, format check, mypy, and the frontend's lint and types
	@scripts/setup dev node
	@exec scripts/test ruff format mypy frontend-lint frontend-types

format:  ## format Python and the frontend
	@scripts/setup dev node
	@.venv/bin/ruff check --fix --quiet . || true
	@.venv/bin/ruff format .
	@scripts/node npm --prefix frontend run --silent format

ui:  ## build the web UI
	@scripts/setup run ui

schema:  ## write the OpenAPI schema and the frontend's types again
	@scripts/setup run node
	@exec scripts/check-schema --write

bench:  ## tokens/s on this machine beside transformers and PEFT
	@scripts/setup dev
	@$(if $(MODEL),:,$(PYTHON) -m demo.base_model var/models/smollm2-135m-instruct)
	@exec $(PYTHON) -m inference.bench $(if $(MODEL),--model-path $(MODEL))

demo-adapters:  ## train the demo's adapters again (minutes) and score them
	@scripts/setup dev
	@$(PYTHON) -m demo.base_model var/models/smollm2-135m-instruct
	@$(PYTHON) -m demo.train var/models/smollm2-135m-instruct
	@exec $(PYTHON) -m demo.evaluate var/models/smollm2-135m-instruct

clean:  ## remove what was built and installed; var/ (data) stays
	@rm -rf .venv frontend/node_modules frontend/dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
