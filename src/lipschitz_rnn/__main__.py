"""`python -m lipschitz_rnn` is `lipschitz-rnn`; torchrun starts it this way."""

from lipschitz_rnn.cli import main

if __name__ == "__main__":
    main()
