"""The chapters of the demo. Each module has `play(stage, account) -> Outcome`, and judges what was recorded in functions of
their own, which need no server.
"""
