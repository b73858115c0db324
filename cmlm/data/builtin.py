PYTHON_DOCS = "builtin:python-docs"
