# The two commands: make demo, make test. Both set up what they need first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= dev

SEED ?= 0
MINUTES ?= 9
QUICK := tests/architecture tests/contracts tests/golden tests/unit
# Scripts are no package: they are checked for names, attributes and arguments that are not there.
LENIENT := --config-file= --follow-imports silent --ignore-missing-imports \
	$(foreach code,arg-type assignment misc override union-attr var-annotated,--disable-error-code $(code))
# Each process has a stretch of the files, whose fixtures it makes once, and takes of the other's last.
TWO := -n 2 --dist worksteal

# Tests start many processes: none of them is to compile the source again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo quick test slow faults test-all check format pages docs bench clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/ready  ## make .venv with the clozelab command in it

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

demo: setup  ## from text to two encoders, a task and transformers, on embedded data
	$(BIN)/clozelab demo

quick: setup  ## import rules, contracts, golden numbers and units: what to run while changing things
	OMP_NUM_THREADS=1 CLOZELAB_QUICK=1 $(BIN)/pytest $(TWO) -m 'not slow and not thorough' $(QUICK)

test: setup  ## the whole suite but what is slow
	OMP_NUM_THREADS=1 $(BIN)/pytest $(TWO)

slow: setup  ## the tests that take minutes each
	OMP_NUM_THREADS=1 $(BIN)/pytest $(TWO) -m slow

faults: setup  ## kills, flipped bits, second writers, signals, full disks: SEED=0, MINUTES=9
	$(BIN)/python tools/faults.py --seed $(SEED) --minutes $(MINUTES)

test-all: test slow faults  ## everything, half an hour or so

check: setup  ## lint, format, types, import rules
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/ruff format --check src tests benchmarks tools
	$(BIN)/mypy
	MYPYPATH=benchmarks:tools $(BIN)/mypy $(LENIENT) benchmarks/*.py tools/*.py
	$(BIN)/pytest -q tests/architecture

format: setup  ## format the code
	$(BIN)/ruff check --fix src tests benchmarks tools
	$(BIN)/ruff format src tests benchmarks tools

pages: setup  ## make the pages again that are made of the source and of records
	$(BIN)/python tools/api_docs.py
	$(BIN)/python tools/draw_rooms.py
	$(BIN)/python tools/paper_pages.py
	$(BIN)/python tools/costs_page.py
	$(BIN)/python tools/llms_txt.py

docs: setup  ## the site, in site/: mkdocs over docs/, strictly
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python tools/site_source.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: setup  ## measure training and the text path beside transformers and datasets
	$(BIN)/pip install --quiet --constraint constraints.txt '.[bench]'
	$(BIN)/clozelab bench --against transformers
	$(BIN)/python benchmarks/text.py

clean:  ## remove what was made
	rm -rf $(VENV) demo build site
