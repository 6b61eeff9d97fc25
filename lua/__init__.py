"""The Lua scripts, importable as `celery_redis_plus.lua` (see setup.py); only their text is used.

This file makes the folder a regular package: setuptools' editable installs do not find namespace packages elsewhere.
"""
