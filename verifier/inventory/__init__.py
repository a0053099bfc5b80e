"""The public inventory of a release's data lake: what its files are and what is in them.

Any file is described and none is fatal; nothing is executed or unpickled.
"""

from verifier.inventory.model import INVENTORY_FILE, LAKE_MOUNT, Column, ColumnType, Inventory, Table
from verifier.inventory.read import MOST_FILES, describe_file, read_inventory

__all__ = [
    "INVENTORY_FILE",
    "LAKE_MOUNT",
    "MOST_FILES",
    "Column",
    "ColumnType",
    "Inventory",
    "Table",
    "describe_file",
    "read_inventory",
]
