# A grandchild of a shell keeps the output open; the result does not wait for it.
# expect: succeeded
(setsid bash -c "exec -a sleep-$1 sleep 300" &) &
echo "HELD: left somebody with the pipes"
