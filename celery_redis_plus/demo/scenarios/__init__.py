"""The scenarios of the demo. Each module has `run_scenario(environment, console) -> Outcome`.

Its functions `verify` and `rows` compare what was recorded with what is expected, and need no server.
"""
