"""Give the name of the file with the address of a controller."""

from monolith.control import ADDRESS_FILE

SERVER_ADDR_FILENAME = ADDRESS_FILE
