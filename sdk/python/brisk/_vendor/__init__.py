"""Other people's code, unchanged, each with its licence. cloudpickle: 3.1.3, BSD-3-Clause."""
