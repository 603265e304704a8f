"""The bundled C library: decoders and encoders of block types, as fast as the machine allows.

`cpu` is what numpy code calls; `lib` finds and loads the library. Without it, or with
`QUANTKIT_NATIVE=0` in the environment, everything works through the numpy reference, slower.
"""
