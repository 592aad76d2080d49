"""Any dataset, or any function from step to rows, onto a JAX mesh without a wait."""
