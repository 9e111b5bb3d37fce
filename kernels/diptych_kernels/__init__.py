"""Operations of the model, each named once, each with several implementations.

`reference` is plain torch that is meant to be read: the oracle of every test. `cpu` is torch arranged for the cache
and for bounded memory. `registry.choose_kernels` picks one implementation of each operation when a worker starts and
runs a small case of it against the reference before anything is served.

Every kernel refuses a tensor of another dtype, shape or stride than it documents; none makes a hidden copy.
"""
