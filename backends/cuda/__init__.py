"""Real GPU memory through CUDA's virtual memory management. Nothing here is imported until used.

`CudaBackend` executes plans, `VTensorPool` hands out vTensors as tensors; the driver bindings and
torch are imported when a device is opened or a tensor is made, never before.
"""
