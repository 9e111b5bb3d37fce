"""Model families, found by the `architectures` of a checkpoint's config.json: `config` is what all kernels read."""
