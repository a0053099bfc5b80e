"""The order of stages, and the `rinr` command line. Must not know how anything is done."""
