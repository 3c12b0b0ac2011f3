"""Answers questions about hyparflow in a Python that has TensorFlow: one JSON document a line, in and out.

TensorFlow takes seconds to start, so all tests ask the same process. A question is {"do": function, ...arguments}; the
answer {"answer": ...}, or {"error": name of the exception, "message": ...}.
"""

from __future__ import annotations

import json
import os
import sys
import traceback


def main() -> None:
    """Answer until stdin ends. Whatever else is printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import keras
    import questions

    keras.config.set_floatx("float64")
    for line in sys.stdin:
        question = json.loads(line)
        keras.backend.clear_session()
        try:
            answer = {"answer": getattr(questions, question.pop("do"))(**question)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


main()
