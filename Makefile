# Every target makes the environment it needs from nothing; a second call is instant.
# `make` alone lists the targets.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
TENSORFLOW := .venv-tensorflow
RAY := .venv-ray
LLM_HOSTS := .venv-llm-hosts
OLDEST := .venv-oldest
# One line of progress for each step; pip stays quiet unless it fails.
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check -c constraints.txt
# Small models on few cores: one OpenMP thread a process beats barrier stalls, and
# oneDNN must not pick AMX on machines that advertise but cannot execute it.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-slow test-mutants test-oldest test-tensorflow test-ray test-llm-hosts dist lint format pins docs bench clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

$(STAMPS)/torch: constraints.txt
	@echo "==> making $(VENV) and installing torch (once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) torch==$$(sed -n 's/^torch==//p' constraints.txt)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/demo: $(STAMPS)/torch pyproject.toml constraints-dev.txt
	@echo "==> installing reweigh with what the demo needs (once)"
	@$(PIP) -c constraints-dev.txt -e '.[bench]'
	@touch $@

$(STAMPS)/dev: $(STAMPS)/torch pyproject.toml constraints-dev.txt
	@echo "==> installing reweigh with its development tools (once)"
	@$(PIP) -c constraints-dev.txt -e '.[dev]'
	@touch $@ $(STAMPS)/demo

demo: $(STAMPS)/demo ## does re-weighting help on embedded real data? progress, a verdict, a report; under two minutes
	@$(BIN)/python -m reweigh compare --budget 80s --runs-dir demo

test: $(STAMPS)/dev ## run all tests but the slow ones (what CI runs)
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not device"

test-fast: $(STAMPS)/dev ## run the core's and the engine's tests, in under two minutes
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not device and not processes and not thorough" -q

test-slow: $(STAMPS)/dev ## run the long tier
	$(BIN)/python -m pytest -n $(WORKERS) -m slow --timeout 3600

# The lowest versions that pyproject.toml admits; docs/support.md says what this covers.
$(OLDEST)/stamps/ready: pyproject.toml constraints.txt constraints-oldest.txt
	@echo "==> making $(OLDEST) with the lowest admitted versions (once)"
	@test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	@$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -c constraints-oldest.txt \
	  torch -e '.[bench,flax,sklearn,boosting,transformers,lightning,keras,skorch,optuna]' \
	  'pytest<9' pytest-timeout pytest-xdist hypothesis cvxpy pandas
	@mkdir -p $(OLDEST)/stamps && touch $@

# Warnings of old releases are theirs; old Trainers count a causal model's labels differently (docs/support.md).
test-oldest: $(OLDEST)/stamps/ready ## test the lowest admitted versions, in an environment of their own
	$(OLDEST)/bin/python -m pytest -n $(WORKERS) -m "not slow and not processes" -W default -o xfail_strict=false \
	  --deselect tests/integrations/test_transformers.py::test_router_loss_is_kept \
	  -k "not (by_hand_also_under_accumulation and language and not masked)" --ignore tests/integrations/test_trl.py \
	  tests/objectives tests/torch tests/test_method.py tests/test_monitor.py tests/test_weights.py tests/test_identities.py \
	  tests/test_frameworks.py tests/bench/tables tests/bench/compare tests/bench/lab tests/bench/report tests/integrations

# A process that has registered a device keeps it, so these tests have processes of their own.
test-device: $(STAMPS)/dev ## run trainings, commands and estimators on a second device made of host memory
	REWEIGH_SECOND_DEVICE=1 $(BIN)/python -m pytest -n $(WORKERS) -m device tests/device

# Half an hour or more: outside CI.
test-mutants: $(STAMPS)/dev ## plant bugs and count how many of them the tests notice
	nice -n 15 $(BIN)/python tests/mutants.py

# TensorFlow brings 1.5 GB and its own pins, so it lives apart and outside the ordinary run.
$(TENSORFLOW)/stamps/ready: pyproject.toml constraints.txt
	@echo "==> making $(TENSORFLOW) and installing TensorFlow (once)"
	@test -x $(TENSORFLOW)/bin/python || $(PYTHON) -m venv $(TENSORFLOW)
	@$(TENSORFLOW)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  tensorflow-cpu -e '.[keras]'
	@mkdir -p $(TENSORFLOW)/stamps && touch $@

test-tensorflow: $(TENSORFLOW)/stamps/ready ## test the Keras adapter on TensorFlow, in an environment of its own
	KERAS_BACKEND=tensorflow TF_ENABLE_ONEDNN_OPTS=0 TF_CPP_MIN_LOG_LEVEL=2 \
	  $(TENSORFLOW)/bin/python tests/integrations/workers/keras_backend.py

# Ray brings services of its own; a cluster is not part of the ordinary run.
$(RAY)/stamps/ready: pyproject.toml constraints.txt
	@echo "==> making $(RAY) and installing Ray (once)"
	@test -x $(RAY)/bin/python || $(PYTHON) -m venv $(RAY)
	@$(RAY)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	@$(RAY)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  -e '.[bench,ray]' pytest pytest-timeout hypothesis
	@mkdir -p $(RAY)/stamps && touch $@

test-ray: $(RAY)/stamps/ready ## test runs on a Ray cluster, in an environment of its own
	$(RAY)/bin/python -m pytest tests/bench/lab/test_ray.py

# Programs that fine-tune language models pin each other's versions apart: an environment for each, with
# what it imports on a CPU and without its GPU libraries.
LLM_PROGRAMS := axolotl llamafactory swift torchtune
$(LLM_HOSTS)/%/ready: tests/llm_hosts/%.txt constraints.txt pyproject.toml
	@echo "==> making $(LLM_HOSTS)/$* and installing $* (once)"
	@test -x $(LLM_HOSTS)/$*/bin/python || $(PYTHON) -m venv $(LLM_HOSTS)/$*
	@$(LLM_HOSTS)/$*/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch numpy
	@$(LLM_HOSTS)/$*/bin/python -m pip install --quiet --disable-pip-version-check -r tests/llm_hosts/$*.txt \
	  pytest pytest-timeout hypothesis
	@$(LLM_HOSTS)/$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  $$(sed -n 's/^# without dependencies: //p' tests/llm_hosts/$*.txt) -e .
	@touch $@

test-llm-hosts: $(LLM_PROGRAMS:%=$(LLM_HOSTS)/%/ready) ## test axolotl, LLaMA-Factory, ms-swift and torchtune, in environments of their own
	@for program in $(LLM_PROGRAMS); do echo "==> $$program"; \
	  PYTHONPATH=tests/llm_hosts:tests/llm_hosts/without_audio OMP_NUM_THREADS=1 \
	  $(LLM_HOSTS)/$$program/bin/python -m pytest -q -W default tests/llm_hosts/test_$$program.py tests/llm_hosts/test_peft.py \
	  || exit 1; done

lint: $(STAMPS)/dev ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# The newest of everything that pyproject.toml admits; run the tests before you commit the result.
pins: $(STAMPS)/torch ## take the newest releases into the development environment, and write their versions down
	@$(PIP) --upgrade --upgrade-strategy eager -e '.[dev]'
	@(sed '/^[^#]/,$$d' constraints-dev.txt; $(BIN)/python -m pip freeze --exclude-editable | grep -v '^torch==') > constraints-dev.tmp
	@mv constraints-dev.tmp constraints-dev.txt && touch $(STAMPS)/dev $(STAMPS)/demo

format: $(STAMPS)/dev ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMPS)/dev ## build the documentation; warnings are errors
	$(BIN)/python -m sphinx -b html -W --keep-going -q docs docs/_build/html
	@echo "docs/_build/html/index.html"

dist: $(STAMPS)/dev ## build and check the archives of a release, in dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m check_wheel_contents --toplevel reweigh dist/*.whl

bench: $(STAMPS)/dev ## time the library against plain training and its peers; writes benchmarks/results/
	@for script in benchmarks/[!_]*.py; do echo "==> $$script"; $(BIN)/python $$script || exit 1; done

clean: ## remove what the targets made
	rm -rf $(VENV) $(TENSORFLOW) $(RAY) $(LLM_HOSTS) $(OLDEST) docs/_build docs/generated demo dist .pytest_cache .ruff_cache
