"""Device code that several kernels share: the exchange between ranks and the top-16 selection.

Nothing here is imported by the host side but ``layout``, which needs no compiler.
"""
