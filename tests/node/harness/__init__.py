"""Real nodes on one machine: systemd, sshd and Docker booted in containers, with played GPUs."""
