"""Model families, one file each, found by the `architectures` of a checkpoint's config.json."""
