"""The wheel runtime: SGLang from locked Python packages, in an environment of the toolkit's own."""
