"""What serves SGLang on a node by hand, read into the data of an inventory that reproduces it."""
