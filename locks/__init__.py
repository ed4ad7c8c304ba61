"""What the outside world says, written down once: image tags, model revisions, `sglang.lock`."""
