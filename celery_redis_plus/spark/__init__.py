"""Spark over everything that happened to every message: source, tables, report, sink (extra `spark`).

Only this room knows PySpark; importing the package itself does not import it.
"""
