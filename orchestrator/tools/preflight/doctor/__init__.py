"""What may be wrong with a machine and a configuration, looked for before a run: a line for each check, with a remedy.

`checks.py` lists the checks; each lies in the file of what it looks at.
"""
