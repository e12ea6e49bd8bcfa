# Two commands do everything on a fresh machine: make demo, make test. Needs Python 3.10 to 3.13 and make.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
# what make demo trains (conf/recipe/demo/smoke.yaml), and where
DEMO := model=resnet18_demo profile=smoke
DEMO_RUNS := results/runs/demo

# every file in conf/table is a target
PROFILE ?= cpu
REPRODUCED := $(patsubst conf/table/%.yaml,%,$(wildcard conf/table/*.yaml))
VARIABLES := PROFILE SEEDS CELLS PROBE CONFIRM JOBS WORKERS MAX_WORKERS LAUNCHER SLURM GPUS_PER_NODE WAIT DRY GPUS
UNKNOWN = $(filter-out $(VARIABLES) PYTHON BIN INSTALLED PUFFERFISH_% -%,$(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name))))
REPRODUCE = $(if $(UNKNOWN),$(error unknown: $(UNKNOWN); variables of tables and figures are $(VARIABLES), and those of the environment stand before make))$(BIN)/python -m pufferfish_bench.cli.reproduce --profile $(PROFILE) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(filter 1,$(CONFIRM)),--confirm) \
            $(if $(filter 0,$(PROBE)),--no-probe) $(if $(JOBS),--jobs $(JOBS)) $(if $(WORKERS),--workers $(WORKERS)) $(if $(MAX_WORKERS),--max-workers $(MAX_WORKERS)) \
            $(if $(LAUNCHER),--launcher $(LAUNCHER)) $(if $(SLURM),--slurm '$(SLURM)') $(if $(GPUS_PER_NODE),--gpus-per-node $(GPUS_PER_NODE)) \
            $(if $(filter 0,$(WAIT)),--no-wait) $(if $(filter 1,$(DRY)),--dry-run) $(if $(GPUS),--gpus $(GPUS)) $(foreach pattern,$(CELLS),--cells '$(pattern)')

.PHONY: help demo test bench bench-quick tables figures report $(REPRODUCED) figure3 figure4 figure-budget advisor-check docs lint format clean

help:  ## show this list
	@grep -E '^[a-z0-9_-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(INSTALLED)  ## train a ResNet-18 on synthetic images, vanilla and with Pufferfish, and show whether it pays; under 3 minutes
	@test ! -e $(DEMO_RUNS)/payoff.png || rm -rf $(DEMO_RUNS)  # a demo that was stopped continues
	@$(BIN)/pufferfish-run method=vanilla run_dir=$(DEMO_RUNS)/vanilla $(DEMO)
	@$(BIN)/pufferfish-run method=pufferfish run_dir=$(DEMO_RUNS)/pufferfish $(DEMO)
	@$(BIN)/pufferfish payoff $(DEMO_RUNS)/vanilla $(DEMO_RUNS)/pufferfish --out $(DEMO_RUNS)/payoff

test: $(INSTALLED)  ## run all tests; PUFFERFISH_DATA=DIR adds those on real data
	$(BIN)/pytest

bench: $(INSTALLED)  ## measure speed against rivals, as ratios, into results/bench/; under 20 minutes; PUFFERFISH_DATA=DIR may hold imagenet_fullsize
	$(BIN)/python -m pufferfish_bench.cli.bench all

bench-quick: $(INSTALLED)  ## the same with fewer rounds and smaller sizes, into results/runs/bench-quick; under 3 minutes
	$(BIN)/python -m pufferfish_bench.cli.bench all --quick

tables: $(INSTALLED)  ## run what is missing of all tables, then write the report; one table: make table4 PROFILE=cpu (profiles: paper, cpu, smoke); many devices: JOBS=2, LAUNCHER=local|slurm|debug, SLURM='partition=gpu', WAIT=0, WORKERS=8, DRY=1 GPUS=8 (docs/clusters.md)
	$(REPRODUCE) $(filter table%,$(REPRODUCED))

figures: $(INSTALLED)  ## the same for all figures (4b and 6 need root); one figure: make figure5
	$(REPRODUCE) $(filter figure%,$(REPRODUCED))

report: $(INSTALLED)  ## write tables, figures and the HTML page in results/ from the records
	$(BIN)/python -m pufferfish_bench.cli.report --profile $(PROFILE)

$(REPRODUCED): $(INSTALLED)
	$(REPRODUCE) $@

figure3: figure3a figure3b
figure4: figure4a figure4b figure4c figure4c_end_to_end
figure4b:  ## times over bandwidth, between network namespaces with capped links: needs root, about 25 minutes on two cores
advisor-check: $(INSTALLED)  ## compare the predictions of pufferfish-advise with runs in the network lab, into results/advisor: needs root, under 25 minutes
	$(BIN)/python -m pufferfish_bench.cli.advisor_check

figure-budget: figure_budget  ## vanilla minus Pufferfish over the training budget, from 1/4 to 4 times the recipe's epochs

docs: $(INSTALLED)  ## write docs/settings.md from the comments in conf/
	$(BIN)/python -m pufferfish_bench.config.settings_page > docs/settings.md

lint: $(INSTALLED)  ## check with ruff (errors, format) and mypy (types)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.DEFAULT:
	@test ! -x $(BIN)/python || $(REPRODUCE) $@
	@test -x $(BIN)/python || { echo "there is no target $@; make help lists them" >&2; exit 2; }

clean:  ## remove the environment and caches, not results and data
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache .hypothesis src/*.egg-info

$(INSTALLED): setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 10) <= sys.version_info[:2] < (3, 14) else "Python 3.10 to 3.13 is needed (Hydra does not run on 3.14 yet), this is " + sys.version.split()[0] + ": make PYTHON=python3.12 chooses another")'
	@echo "installing into .venv: some minutes and 2 GB, without output"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --disable-pip-version-check --quiet --editable '.[test]'
	@touch $@
