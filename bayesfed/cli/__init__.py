"""The command line: `bayesfed run`, `compare`, `plot`, `list`, `pairs` and `doctor`, all of them on top of what `import bayesfed` offers."""
