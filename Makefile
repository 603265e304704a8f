# `make demo` and `make test` are all a newcomer needs; both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
NATIVE_SOURCES := $(shell find quantkit/native/csrc -type f)

.PHONY: demo test test-gpu lint bench bench-codecs native-cuda bench-codecs-gpu clean

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

# libquantkit_cuda into the package; needs nvcc, cmake and ninja, and no GPU. For one GPU only, and
# several times faster: make native-cuda CUDA_ARCHITECTURES=native (or 90-real, ...).
CUDA_BUILD ?= build/cuda
native-cuda:
	cmake -S quantkit/native/csrc -B $(CUDA_BUILD) -G Ninja -DQUANTKIT_CUDA=ON \
	  $(if $(CUDA_ARCHITECTURES),-DCMAKE_CUDA_ARCHITECTURES="$(CUDA_ARCHITECTURES)")
	cmake --build $(CUDA_BUILD) --target quantkit_cuda

# On a machine with a GPU: equality with the CPU and speeds; see its --help.
bench-codecs-gpu: $(STAMP)
	$(BIN)/python -m tests.bench.codecs_gpu

# Installing builds the native library, so that a change of its sources installs again.
$(STAMP): pyproject.toml constraints.txt $(NATIVE_SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv runs build quantkit/native/*.so
