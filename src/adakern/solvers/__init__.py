"""The solvers: ways to find the answer that a limit asks for."""
