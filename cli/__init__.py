"""The command line: one file a command; arguments and printing only. Import as `vtsim.cli`."""

if __name__ != "vtsim.cli":
    raise ImportError(
        f"this package is imported as vtsim.cli, not as {__name__}: two names of one package "
        "would be two sets of types"
    )
