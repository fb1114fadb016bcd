"""Parts of `benchmarks/scale_out.py`. Each has ``targets(check)``, which prints the line of each target and yields whether it is met."""
