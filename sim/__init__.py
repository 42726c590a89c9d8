"""The real scheduler and policies on a virtual clock, with a model of what a step costs on a GPU."""
