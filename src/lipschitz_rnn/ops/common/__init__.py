"""What every scan needs: argument checks, dtypes, precision settings, tracing, vmap rules, Triton support."""
