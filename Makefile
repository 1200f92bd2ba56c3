# Everything a newcomer needs: `make demo`, `make test`. Safe to repeat; nothing outside this folder
# and the system packages named below is changed.
# The first of these that can make an environment (Debian splits that off, as python3.13-venv).
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.14; do \
  $$python -c 'import ensurepip, venv' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
# `make gpu-env` chooses the other lock, and all targets keep to the one that is installed.
LOCK := requirements-$(if $(wildcard $(VENV)/.done-requirements-gpu.lock),gpu,cpu).lock
# The lock for GPUs is one list; that for CPUs leaves to a second one what no run needs.
TEST_LOCK := $(if $(filter requirements-cpu.lock,$(LOCK)),requirements-cpu-test.lock)
PIP := $(BIN)/pip --disable-pip-version-check --quiet install
SYSTEM_PACKAGES := bubblewrap chromium firejail firejail-profiles fonts-liberation libseccomp2 postgresql

# Packages come uncompiled: each process would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-system check bench load chaos audit docs clean env test-env gpu-env gpu-check gpu-bundle system

demo: env ## servers, the whole tiny run, the report and where to look
	$(BIN)/klear up
	$(BIN)/klear run tiny

# One thread: workers beside each other fill the cores, and threads that wait for each other cost more.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

# Those that take minutes come first; of the others only modules with such tests are imported. Three
# workers for two cores: servers, stages and kills wait as often as they compute.
LONG := $(addprefix tests/,chaos/test_kill_matrix.py flows/test_cockpit.py browser/test_a_person.py \
  deployments/test_compose_servers.py gpu/test_pocket.py flows/test_ablation_killed.py chaos/test_concurrency.py \
  cluster/test_training.py cluster/test_parts.py endpoint/test_vllm.py flows/test_real_model.py \
  flows/test_shared_run.py)
SYSTEM := $(shell grep -rl 'mark\.system' tests --include='test_*.py')

test: test-env ## what a newcomer runs: everything fast, and one real smoke of every kind
	$(PYTEST) --numprocesses 2 --dist worksteal -m "not system"

test-system: test-env ## the rest: every kill, cluster, server, browser and sandbox
	$(PYTEST) --numprocesses 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 -m system $(LONG) $(SYSTEM)

check: test-env ## style, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: test-env ## the site, in site/; a broken link or anchor is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: test-env ## one JSON line a benchmark
	for file in tests/bench/bench_*.py; do $(BIN)/python $$file || exit 1; done

load: test-env ## load, at two sizes each: memory, latency and how both grow
	$(BIN)/python tests/bench/load_data.py
	$(BIN)/python tests/bench/load_servers.py

chaos: test-env ## a hundred SIGKILLs in every stage; CHAOS_SEED=N repeats one, KILLS=N asks for more
	PYTHONPATH=$(CURDIR)/tests $(BIN)/python tests/chaos/matrix.py --kills $(or $(KILLS),100)

audit: env ## known vulnerabilities of what the lock installs
	test -x .venv-audit/bin/pip-audit || { $(PYTHON) -m venv .venv-audit && .venv-audit/bin/pip install --quiet pip-audit; }
	$(BIN)/python tests/security/audit.py .venv-audit/bin/pip-audit $(LOCK) $(TEST_LOCK)

clean: ## caches only; results stay in .klear, the environment in .venv
	rm -rf .pytest_cache .ruff_cache .import_linter_cache .hypothesis build site *.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

env: system $(VENV)/.done-$(LOCK)

test-env: env $(TEST_LOCK:%=$(VENV)/.done-%) ## and what `make check` and `make test` need; vLLM for CPUs

$(VENV)/.done-requirements-gpu.lock: requirements-gpu.lock pyproject.toml requirements.in
	@$(new-environment)
	@echo "installing $<: with CUDA's libraries, the first time many minutes without a word"
	$(PIP) -r $<
	@$(install-klear)

$(VENV)/.done-requirements-cpu.lock: requirements-cpu.lock pyproject.toml requirements.in
	@$(new-environment)
	@echo "installing $<: 600 MB to download, 2 GB on disk, the first time a minute or more without a word"
	@$(install-complete-list)
	@$(install-klear)

$(VENV)/.done-requirements-cpu-test.lock: requirements-cpu-test.lock $(VENV)/.done-requirements-cpu.lock
	@echo "installing $<: the tools of the tests, and vLLM; 2 GB on disk"
	@$(install-complete-list)
	touch $@

define new-environment
test -x $(BIN)/pip || { test -n "$(PYTHON)" && $(PYTHON) -m venv $(VENV); } || \
  { echo "no python3.11, 3.12, 3.13 or 3.14 with venv was seen: make PYTHON=/path/to/python"; exit 1; }
endef

# pip uses one core: one for each half of the list. Packages that write into one folder (mlflow and
# mlflow-skinny) are in one half. Python compiles what is imported, once, which is less than all;
# numpy now, for the sandbox can keep nothing.
define install-complete-list
printf '%s\n' '^[a-q]' '^[r-z]' | xargs -P 2 -I {} sh -c \
  'grep -i "{}" $< | $(PIP) --no-compile --no-deps -r /dev/stdin' && \
$(BIN)/python -m compileall -q $(VENV)/lib/python3.*/site-packages/numpy
endef

define install-klear
$(PIP) --no-deps --no-build-isolation -e . && \
{ $(BIN)/python -c 'import torch' || { echo "this torch does not import: install PyTorch's CPU build of the version in $< into $(VENV)"; exit 1; }; } && \
rm -f $(VENV)/.done-* && touch $@
endef

gpu-env: ## the same on a machine with NVIDIA GPUs
	$(MAKE) env LOCK=requirements-gpu.lock

gpu-check: ## what works on a GPU, how fast, and what does not: TIER=0 to 3 or pocket, into GPU.jsonl
	$(BIN)/python -m tests.gpu.check $(or $(TIER),0) $(if $(MINUTES),--minutes $(MINUTES))

gpu-bundle: test-env ## TIER=0 or pocket for a machine without network, with Python 3.12 (PY=3.11: that one) and torch
	$(BIN)/python tests/gpu/bundle.py --tier $(or $(TIER),0) --python $(or $(PY),3.12) $(if $(GSM8K),--gsm8k $(GSM8K))

system: ## what apt must provide; installs it where that is allowed
	@missing=; for p in $(SYSTEM_PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	test -x $(BIN)/pip || test -n "$(PYTHON)" || missing="$$missing python3 python3-venv"; \
	if [ -n "$$missing" ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; \
	  else \
	    echo "please run: sudo apt-get install --no-install-recommends$$missing"; exit 1; \
	  fi; \
	fi
