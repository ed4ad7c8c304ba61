"""Reads what every node of an inventory is, and changes nothing.

pyinfra inventories/site.py deploys/survey.py
"""

from pyinfra import host

from deploys.node import survey_of
from plans.text import one_line

survey = survey_of(host, None)
if survey is not None:
    host.log_styled(one_line(survey), fg="green")
