"""Every message of the package, provoked by a call, and what it says to try, tried.

How to write a room. A module of `rooms/` (`geometry.py`, or in a folder, `data/readers.py`, of at
most 500 lines) has a list `CASES` of tuples, in any order, and `COMPLETE`, the files and folders of
the package of whose messages none is missing in this list; `()` while one is. Nothing else: which
message a case reaches is found by looking where it was made. There are three kinds of tuples:

    (call, given)          `call(given)` is refused. The expressions of the message's hint are
                           evaluated (names of the case's module first, `world.evaluated`), each is
                           passed to `call` in place of `given`, and each must work. The shortest,
                           where the hint is an argument.
    (wrong, tried, right)  `wrong()` is refused or warns. `tried` is a part of its hint, and
                           `right()` does what this part says; it must run without an error and
                           without a warning. What `right` returns is not looked at.
    (wrong, why, None)     nothing can be tried: `why` is the part of the message that says so.

`world.py` has what calls are made of, as names and built when first used (`net`, `train`,
`clients`, `svi`, ...), beside those of `tests.house.wrong_calls.given` and
`tests.support.doors.given`. Calls that provoke many messages are in `tests/house/wrong_calls` and
in tests whose names say that something is refused. A command's message is what it prints: `wrong`
may call `bayesfed.cli.main.main` and return. A module that needs an extra or time sets `MARK`, a
marker of `pyproject.toml` ("flower", "slow"); its list may begin with another's,
`[*quick.CASES, ...]`, where the two share a file of the package.

    python -m tests.support.hints [bayesfed/geometry ...]

prints, in seconds, what fails in the cases and which messages of these files and folders no case
reaches. `tests/house/test_hints.py` is the test.

What is a message. A *place* is a call in the source of the package that makes one (`places.py`):

- of an error class of the package, or `warnings.warn`;
- of a *maker*, a function that returns an error by its annotation and has one return: its callers
  are places, and the call in it is none;
- of a *carrier*, a function with a parameter `hint`: the same, since its callers say what to try;
- of `errors.checks.check` with a role.

A place is reached when its message is made and what the call says in the end (the error's text, its
warnings, and what it prints) contains this message. No places are: errors that are caught, or made
elsewhere, and raised on; builtin errors whose words become a part of a message of the package
(`ValueError` under `except ValueError` in the same file); Python's protocols (`AttributeError`,
`KeyError`). What no call can reach is in `unreachable.py` with the reason.

The other messages come from roles and annotations: `roles.py` takes every role of every function
that is `@checked`, and its hint must fit the role itself, or is in words, listed there.
"""

# Set to True when every room is filled: then a file of the package that no `COMPLETE` covers fails
# `tests/house/test_hints.py` and `benchmarks/contracts.py --check`.
ALL = True
