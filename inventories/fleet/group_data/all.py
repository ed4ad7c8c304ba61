"""What holds for every node, unless its group or the node itself says otherwise."""

ssh_user = "root"
