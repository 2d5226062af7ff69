"""`python -m adakern` is the command `adakern`."""

from adakern.cli import main

if __name__ == "__main__":
    main()
