"""The command `qk`, for `python -m querykey`."""

from querykey.cli import main

if __name__ == "__main__":
    main()
