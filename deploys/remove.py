"""Takes away what the toolkit put on every node; keeps weights, drop-ins and records.

pyinfra inventories/site.py deploys/remove.py
"""

from pyinfra import host

from deploys.node import remove_from

remove_from(host)
