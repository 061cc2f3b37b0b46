"""What the pods' torch consists of."""

from trainyard_lab.torch_folder import closure


def test_what_torch_takes_from_the_extras_of_other_packages_is_there():
    """torch itself names only cuda-toolkit[cudart, cublas, ...]; without the runtime it does not import."""
    found = closure("torch")
    assert {"torch", "sympy", "cuda-toolkit", "nvidia-cuda-runtime", "nvidia-cublas", "nvidia-nccl-cu13"} <= found
    assert "pytest" not in found
