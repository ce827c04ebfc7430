"""The FlexInfer scheduler (Algorithm 1), the SimPy replay loop and the memory worker."""
