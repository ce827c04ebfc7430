"""Memory policies: one file each, registered under the entry-point group `vtsim.policies`."""

if __name__ != "vtsim.policies":
    raise ImportError("import vtsim.policies, not policies: the root folder is linked into vtsim")
