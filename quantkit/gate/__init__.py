"""The quality gate: is a candidate as close to the unquantized model as a reference quantization?

`kld` scores tokens, `records` keeps them, `statistics` sums them up; `logits_file` reads and
writes llama-perplexity's log-probability file, `meter_llamacpp` runs that program; `criterion`
fixes the bars and `judge` holds the figures against them.
"""
