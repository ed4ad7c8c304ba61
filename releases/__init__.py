"""The release table: what is known of each SGLang release, as data with a tested schema."""
