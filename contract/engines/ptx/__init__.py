"""PTX text executed with NumPy, every thread a lane of an array; knows neither torch nor any compiler."""
