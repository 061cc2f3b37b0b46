# Everything that is done with this repository, on a machine with Python 3.11 and package registries.
# Nothing is done twice: the environment is kept in .venv, servers and images in $TRAINYARD_CACHE (/var/cache/trainyard).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# Some machines tell Python not to keep what it compiles: every process would compile torch and the Kubernetes client again.
unexport PYTHONDONTWRITEBYTECODE
# Before the project is installed, its own modules are read from the tree.
FROM_TREE := PYTHONPATH=lab/src

.PHONY: help
help:  ## Say what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

.PHONY: setup
setup: .venv/bin/uv  ## Make the Python environment at .venv
	@$(FROM_TREE) $(PYTHON) -m trainyard_lab.environment full

.venv/bin/uv:
	@$(FROM_TREE) $(PYTHON) -m trainyard_lab.environment bare

# Needs nothing of the environment but its pip, so it runs beside the installation of the rest.
.PHONY: servers
servers: .venv/bin/uv  ## Build the lab's servers from Go modules
	@$(FROM_TREE) $(BIN)/python -m trainyard_lab.build

.PHONY: prepare
prepare:  ## Do all that is done once: environment, servers, images
	@$(MAKE) -j2 setup servers
	@$(BIN)/python -m trainyard_lab prepare

.PHONY: lint
lint: setup  ## Check style, types, layers, generated files and the chart
	@$(BIN)/python tests/parts.py lint

.PHONY: test
test:  ## Run all tests, installing and building what they need
	@began=$$(date +%s); $(MAKE) -j2 setup servers; \
	exec $(BIN)/python tests/parts.py --began=$$began

.PHONY: demo
demo: prepare  ## Train, preempt and resume on a lab of eight nodes, from nothing
	@$(BIN)/python -m trainyard_lab.demo

.PHONY: demo-down
demo-down: setup  ## Stop the lab and leave nothing behind
	@$(BIN)/python -m trainyard_lab down

.PHONY: clean
clean:  ## Remove what was made in this folder; servers and images stay in the cache
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name '*.egg-info' -prune -exec rm -rf {} +
	find . -name __pycache__ -prune -exec rm -rf {} +
