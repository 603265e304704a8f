"""Recipes: a whole pipeline in one file, run step by step and resumable at any point."""

from quantkit.pipeline.plan import PlannedStep, plan_recipe
from quantkit.pipeline.recipe import Recipe, load_recipe
from quantkit.pipeline.run import RunResult, run_recipe

__all__ = ["PlannedStep", "Recipe", "RunResult", "load_recipe", "plan_recipe", "run_recipe"]
