# The verbs of the project; HACKING.md explains them. Every verb makes or refreshes .venv by itself.
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
ONLY   ?=

.DEFAULT_GOAL := help
.PHONY: help venv bytecode demo example-pipeline lint format test sim sim-mutants fuzz soak interop bench proto docs clean

help:  ## list the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

$(STAMP): pyproject.toml tools/make_venv.py
	@$(PYTHON) tools/make_venv.py

venv: $(STAMP)  ## create or refresh .venv

# Installers compile what they install; this checkout is not installed. Without it every process that the verbs below
# start compiles all modules again, where Python was told not to write bytecode.
bytecode: $(STAMP)
	@$(RUN) -m compileall -q src

demo: bytecode  ## the product end to end: a cluster fails in parts under load, Spark gives every message a verdict
	@$(RUN) -m demo

example-pipeline: bytecode  ## a declarative pipeline of Spark on topics, from nothing to its result
	@$(RUN) -m examples.declarative

lint: $(STAMP)  ## ruff, mypy --strict, and the rules of the house: imports, references, prose
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(RUN) -m tools.house_rules
	$(RUN) -m tools.import_rules
	$(RUN) -m tools.doc_refs
	$(RUN) -m tools.prose_rules

format: $(STAMP)  ## let ruff format and fix what it can
	$(VENV)/bin/ruff check --fix-only --quiet .
	$(VENV)/bin/ruff format --quiet .

# Files go to four processes in the order they are found: those with real processes, which mostly wait, come first.
test: bytecode  ## the fast tests: unit, contracts, real processes
	$(RUN) -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder --durations 25 --durations-min 4

sim: bytecode  ## simulated disasters by seed [SEEDS=100|MINUTES=m] [FROM=0] [SEED=one to replay] [WITHOUT=class,…] [KIND=ledgers|topics|bundles|staging]
	$(RUN) -m magnetar.sim $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(FROM),--from $(FROM)) $(if $(WITHOUT),--without $(WITHOUT)) $(if $(KIND),--kind $(KIND))

sim-mutants: bytecode  ## planted bugs: the simulator must catch every one of them
	$(RUN) -m magnetar.sim.mutants

fuzz: $(STAMP)  ## mutated input against every decoder [ONLY=target] [SECONDS=20] [SEED=n]
	$(RUN) -m fuzz $(ONLY) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(INPUTS),--inputs $(INPUTS)) $(if $(SEED),--seed $(SEED))

soak: bytecode  ## the long runs, ending in a JSON verdict [ONLY=part] [SEED=n]
	$(RUN) -m soak $(ONLY) $(if $(SEED),--seed $(SEED))

interop: bytecode  ## against Apache's own servers and classes [ONLY=part] [of ONLY=differential: MINUTES=m SEED=n]
	$(RUN) -m interop $(ONLY) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

bench: bytecode  ## measured against peers in the same run [ONLY=part]
	$(RUN) -m bench $(ONLY)

proto: $(STAMP)  ## generate Python from the .proto files
	$(RUN) -m tools.generate_proto

docs: $(STAMP)  ## generate the pages that are made from code
	$(RUN) -m tools.generate_docs

clean:  ## remove .venv and everything built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
