"""`python -m forgedsl`: the command forgec."""

from forgedsl.cli import start

if __name__ == "__main__":
    start()
