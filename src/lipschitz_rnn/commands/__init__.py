"""The commands of `lipschitz-rnn`, one module each: parsing and printing only."""
