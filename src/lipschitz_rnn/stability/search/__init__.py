"""Where metrics and counterexamples come from. This code may be wrong: ``stability.proof`` checks what it finds."""
