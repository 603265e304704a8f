"""The command line: parse, call a stage, print, exit code. One module a verb."""
