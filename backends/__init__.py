"""Backends: what executes plans and prices steps. Import as `vtsim.backends`, never bare."""

if __name__ != "vtsim.backends":
    raise ImportError(
        f"this package is imported as vtsim.backends, not as {__name__}: two names of one package "
        "would be two sets of types"
    )
