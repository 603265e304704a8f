"""Texts with a pedigree: manifests, the builder that rebuilds them, the training corpus.

A text is only worth comparing on when everybody has the same one, so each has a manifest that
names its packages, their revisions and licences, and the sha256 of every document. The training
corpus of the embedded model is built by `quantkit.capture.texts.dataset`.
"""

from quantkit.capture.texts.build import (
    BuiltText,
    Document,
    build_text,
    check_disjoint,
    load_text,
    verify,
)
from quantkit.capture.texts.manifest import Manifest, load_manifest
from quantkit.capture.texts.overlap import run_set, shared_runs
from quantkit.capture.texts.pin import dump_manifest, pin_manifest
from quantkit.capture.texts.recipe import CorpusRecipe, load_recipe

__all__ = [
    "BuiltText",
    "CorpusRecipe",
    "Document",
    "Manifest",
    "build_text",
    "check_disjoint",
    "dump_manifest",
    "load_manifest",
    "load_recipe",
    "load_text",
    "pin_manifest",
    "run_set",
    "shared_runs",
    "verify",
]
