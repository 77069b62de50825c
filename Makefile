# Everything that a developer of gb10.fleet does. "make help" lists it; README.md tells the story.
#
# A user with real boxes needs none of this.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LAB := $(BIN)/python -m lab

export PATH := $(CURDIR)/$(BIN):$(PATH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
# Molecule would rather see its scenarios in extensions/; they stand at the top here, where people look for them.
export MOLECULE_GLOB := molecule/*/molecule.yml

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

$(STAMP): pyproject.toml tools/find_python
	@echo "== making $(VENV)"
	"$$(tools/find_python)" -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

.PHONY: venv
venv: $(STAMP) ## Make the virtual environment with everything that is needed here

.PHONY: demo
demo: $(STAMP) ## Build the lab, deploy spark-1 and ask it something
	$(LAB) up
	ansible-playbook site.yml --limit spark-1
	$(BIN)/python tools/demo.py spark-1

.PHONY: lab-up
lab-up: $(STAMP) ## Build and start the simulated boxes
	$(LAB) up

.PHONY: lab-down
lab-down: ## Stop and remove the simulated boxes; what was built stays
	@if [ -x $(BIN)/python ]; then $(LAB) down; fi

.PHONY: lab-status
lab-status: $(STAMP) ## Show the simulated boxes
	$(LAB) status

.PHONY: lint
lint: $(STAMP) ## Style, types, Ansible's rules, and that the collections are there
	ruff check .
	ruff format --check .
	mypy plugins tests/unit lab tools
	yamllint --strict .
	ansible-lint
	ansible-galaxy collection install --requirements-file requirements.yml --offline
	antsibull-changelog lint

.PHONY: unit
unit: $(STAMP) ## Tests that need nothing but Python
	pytest -n 2

.PHONY: sanity
sanity: $(STAMP) ## ansible-test sanity on what an installed collection would be
	$(BIN)/python tools/sanity.py

# Scenarios that boot many engines or wait for timers: they want a quiet machine, and more time than CI gives.
LONG := fabric liveness pair rollback runtime soak
SHORT := $(filter-out default $(LONG),$(patsubst molecule/%/molecule.yml,%,$(wildcard molecule/*/molecule.yml)))

# CI tries a selection of the faults, "make molecule-long" all of them. What Molecule remembers of a run that was killed is
# forgotten first: it would take the boxes for started, and not start them.
.PHONY: molecule
molecule: export GB10_LAB_FAULTS := core
molecule: $(STAMP) ## Deploy to the lab, break it, and look
	molecule reset
	molecule test --all --report $(addprefix --exclude ,$(LONG))

.PHONY: molecule-long
molecule-long: $(STAMP) ## The other scenarios: fabric, pair, runtime, ..., and all faults
	molecule reset
	molecule test --all --report $(addprefix --exclude ,$(filter-out faults,$(SHORT)))

.PHONY: test
test: lint unit sanity molecule ## Everything that CI runs

.PHONY: clean
clean: ## Remove everything that was built or started here
	@if [ -x $(BIN)/python ]; then $(LAB) clean; fi
	rm -rf $(VENV) .cache .ansible .mypy_cache .ruff_cache .pytest_cache .hypothesis artifacts dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
