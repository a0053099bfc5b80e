"""`python -m flows` is the command line `rinr`."""

from flows.cli import main

main()
