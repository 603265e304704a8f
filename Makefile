# `make demo` and `make test` are all a newcomer needs; both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
NATIVE_SOURCES := $(shell find quantkit/native/csrc -type f)

.PHONY: demo test test-gpu lint bench bench-codecs clean

demo: $(STAMP)
	$(BIN)/quantkit run recipes/tiny-hybrid.yaml

test: $(STAMP)
	$(BIN)/python -m pytest -n auto

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m tests.bench

# Errors and speeds of the codecs, beside ggml's where QUANTKIT_GGML_LIBRARY names libggml-base.
bench-codecs: $(STAMP)
	$(BIN)/python -m tests.bench.codec_tables

# Installing builds the native library, so that a change of its sources installs again.
$(STAMP): pyproject.toml constraints.txt $(NATIVE_SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv runs build quantkit/native/*.so
