# A program's own kill -9 is no limit.
# expect: failed SIGKILL
kill -9 $$
