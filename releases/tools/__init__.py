"""Programs for whoever adds a release to the table; nothing at run time imports them."""
