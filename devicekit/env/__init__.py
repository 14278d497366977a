"""What is installed for computing on GPUs, and whether it fits together; see `environment`."""

from devicekit.env.collect import environment as environment
from devicekit.env.data import EnvGpu as EnvGpu
from devicekit.env.data import Environment as Environment
from devicekit.env.data import Nvcc as Nvcc
from devicekit.env.data import Problem as Problem
from devicekit.env.data import Verdict as Verdict

__all__ = ["EnvGpu", "Environment", "Nvcc", "Problem", "Verdict", "environment"]
