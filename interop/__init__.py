"""Against Apache's own servers and classes: `make interop [ONLY=part]`, parts being named after our folders.

The classes come from Maven Central by the pinned coordinates in pom.xml; nothing else is needed but Maven and a JDK.
Read next: reporting.py (what is printed), conftest.py, docs/interop.md
"""
