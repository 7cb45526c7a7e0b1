"""Compares bodies with schemas of openapi.json, whose path is the argument.

A line on the standard input has a schema, whether members that it does not describe are wrong, and a body.
The answer is a line: the list of what is wrong.
"""

import copy
import json
import sys

from jsonschema import Draft202012Validator


def close(schema):
    """Forbids undescribed members, wherever a schema leaves that open."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            schema.setdefault("additionalProperties", False)
        schema = list(schema.values())
    if isinstance(schema, list):
        for member in schema:
            close(member)


with open(sys.argv[1], encoding="utf-8") as file:
    open_ = json.load(file)["components"]
closed = copy.deepcopy(open_)
close(closed)
validators = {}
for line in sys.stdin:
    schema, is_closed, body = json.loads(line)
    key = json.dumps([schema, is_closed])
    if key not in validators:
        root = {"allOf": [schema], "components": closed if is_closed else open_}
        checker = Draft202012Validator.FORMAT_CHECKER
        validators[key] = Draft202012Validator(root, format_checker=checker)
    errors = validators[key].iter_errors(body)
    print(json.dumps([f"at {error.json_path}: {error.message}" for error in errors]), flush=True)
