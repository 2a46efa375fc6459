# The same targets for people and for CI. CONFIG is the run's YAML; ARGS are more settings, as in ARGS="seed=3".
CONFIG ?= configs/demo.yaml
ARGS ?=
SEED ?= 1
MINUTES ?= 30
# Where the tests of faults write what they saw.
SEEN := runs/faults.txt
# Collecting all files costs each worker half a minute.
WITH_FAULTS = $(if $(findstring tests/,$(ARGS)),,$(shell grep -rl --include='test_*.py' 'mark[.]faults' tests))
PY := .venv/bin/python
PACKAGES := $(addprefix -p temper.,rewards envs rollout learner orchestrator)
# A target for each stage. An image runs `make setup` without that file.
STAGES := $(shell sed -nE 's/^    name="([a-z_]+)",/\1/p' orchestrator/stages/registry.py 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help setup demo budget-demo budget-study $(STAGES) ui submit test test-long test-faults test-network judges soak check bench \
	gpu-check settings site clean

help:  ## list the targets
	@grep -E '^[a-z_-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'
	@awk -F '"' '/^    name=/ {name = $$2} /^    help=/ {printf "  make %-12s a stage of CONFIG: %s\n", name, $$2}' \
	  orchestrator/stages/registry.py

setup:  ## make .venv: the GPU stack where nvidia-smi answers, else the CPU stack; STACK=cpu|gpu FUSED=1
	@bash requirements/install.sh

demo: setup  ## set up, train the demo model on three environments, print where the report is
	@$(PY) -m temper.orchestrator run configs/demo.yaml $(ARGS)
	@echo "report: $$(ls -t runs/*/report.html | head -n 1)"

budget-demo: setup  ## train with nested thinking budgets and without, SEED=1, and compare
	@$(PY) -m temper.orchestrator run configs/budget_demo.yaml name=budgets-$(SEED) seed=$(SEED) $(ARGS)
	@$(PY) -m temper.orchestrator fork runs/budgets-$(SEED) --from sft name=free-$(SEED) rl.thinking.nested_budgets=[]
	@$(PY) -m temper.orchestrator report --compare --runs "nested=runs/budgets-$(SEED)" \
	  --runs "without=runs/free-$(SEED)" --out runs/budget-demo-$(SEED).html

budget-study: setup  ## train and compare all arms of docs/budget_study.md at low priority; hours, and it can be stopped
	@PYTHONPATH=tests nice -n 19 $(PY) -m bench.budget_study configs/budget_study.yaml $(ARGS)

$(STAGES): setup
	@$(PY) -m temper.orchestrator run $(CONFIG) --stage $@ $(ARGS)

ui: setup  ## open MLflow's pages on the newest runs and their charts, on http://127.0.0.1:5000
	@mkdir -p runs
	@$(PY) -m temper.orchestrator ui $(ARGS)

submit: setup  ## submit CONFIG as a job to a Ray cluster, or to a local one
	@$(PY) -m temper.orchestrator submit $(CONFIG) $(ARGS)

test: setup  ## set up, run the tests, three files at a time (they wait for processes a lot): a quarter of an hour
	@$(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

test-long: setup  ## run the tests that take long: every row, every generator, every attack
	@$(PY) -m pytest -m slow $(ARGS)

test-faults: setup  ## kill, stop and starve real runs, two at a time, and print what was seen: half an hour
	@mkdir -p runs && rm -f $(SEEN)
	@TEMPER_FAULTS=$(abspath $(SEEN)) $(PY) -m pytest -m faults -n 2 --dist worksteal $(WITH_FAULTS) $(ARGS); \
	  status=$$?; cat $(SEEN) 2>/dev/null; exit $$status

test-network: setup  ## run over four hosts with a slow and lossy network with partitions, and write docs/network.md; needs root
	@TEMPER_NETWORK_PAGE=docs/network.md $(PY) -m pytest tests/network -m network -p no:xdist $(ARGS)

judges: setup  ## run code of other projects as judges, fetched by pip, and write docs/judges.md
	@$(PY) -m pytest tests/judges -m judges -p no:xdist --judges-page docs/judges.md $(ARGS)

soak: setup  ## run the demo's loop under random faults, MINUTES=30 SEED=1, and measure what stays
	@PYTHONPATH=tests $(PY) tests/support/soak.py --minutes $(MINUTES) --seed $(SEED)

check: setup  ## ruff (rules and format), imports and mypy
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@PYTHONPATH=.types .venv/bin/lint-imports --no-cache > .types/imports.log || { cat .types/imports.log; exit 1; }
	@MYPYPATH=.types:tests .venv/bin/mypy $(PACKAGES)
	@MYPYPATH=.types:tests .venv/bin/mypy --explicit-package-bases requirements tests

bench: setup  ## measure the start, rollout, learner, its memory, weight push and loop with the model of CONFIG, the driver, and the loop beside TRL
	@PYTHONPATH=tests $(PY) -m bench $(CONFIG) $(ARGS)
	@PYTHONPATH=tests $(PY) -m bench.start $(CONFIG) $(ARGS)
	@PYTHONPATH=tests $(PY) -m bench.driver
	@PYTHONPATH=tests $(PY) -m bench.memory
	@PYTHONPATH=tests $(PY) -m bench.beside_trl

gpu-check: setup  ## verify and measure what only a GPU can show, write docs/gpu.md: half an hour and compiling; small without a GPU
	@PYTHONPATH=tests $(PY) -m gpu.measure $(ARGS)

settings: setup  ## write docs/settings.md, the page of all settings
	@page=$$($(PY) -m temper.orchestrator config --reference) && printf '%s\n' "$$page" > docs/settings.md

site: setup  ## build the pages of docs/ as one site in runs/site, with MkDocs and its Material theme, which uv fetches
	@NO_MKDOCS_2_WARNING=1 .venv/bin/uvx --from mkdocs==1.6.1 --with mkdocs-material==9.8.2 mkdocs build --quiet --strict --site-dir runs/site
	@echo "site: runs/site/index.html"

clean:  ## remove .venv and caches; runs/ stays
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
