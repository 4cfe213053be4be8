"""`python -m monolith`: the command line, for torchrun."""

from monolith.cli.main import main

if __name__ == "__main__":
    main()
