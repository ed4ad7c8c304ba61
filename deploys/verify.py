"""Proves that every service of every node answers: one ordinary generation each.

pyinfra inventories/site.py deploys/verify.py
"""

from pyinfra import host

from deploys.node import verify_node

verify_node(host)
