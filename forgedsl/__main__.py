"""`python -m forgedsl`: the command forgec."""

from forgedsl.cli.main import main

if __name__ == "__main__":
    main()
