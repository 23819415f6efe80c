#!/bin/sh
# Runs a command in a network of its own, which has an "internet" behind one link: `there`, with the servers of
# public.py. This machine's network is not changed.
#
#   unshare --net --mount --propagation private -- world.sh FOLDER COMMAND…
#
#   203.0.113.1    public, for the names public.test, two.test and, at the first lookup, rebinding.test
#   10.0.0.5, 169.254.169.254, fd00::5    not public, and just as reachable from here
set -eu
folder=$1
shift
here=$(dirname "$0")

ip link set lo up
mkfifo "$folder/go"
unshare --net -- sh -c "read -r _ < '$folder/go'; exec python3 '$here/public.py' '$folder'" &
there=$!
trap 'kill $there' EXIT
# The server enters its network before it opens the fifo.
exec 3> "$folder/go"
ip link add here type veth peer name there netns "$there"
ip addr add 203.0.113.2/24 dev here
ip -6 addr add fd00::2/64 dev here nodad
ip link set here up
ip route add default via 203.0.113.1
ip route add 10.0.0.0/8 dev here
echo go >&3
exec 3>&-
until [ -e "$folder/ready" ]; do sleep 0.05; done

echo "nameserver 203.0.113.1" > "$folder/resolv.conf"
mount --bind "$folder/resolv.conf" /etc/resolv.conf
"$@"
