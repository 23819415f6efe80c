# A program's own kill -9 is not a limit.
# expect: failed SIGKILL
kill -9 $$
