# Moves a run's files into place and reports what it found, one keyword and its subject per line. $1: owner of
# the files ('' keeps it); $2: working directory; $3: command ('' for code); $4: search path; the rest:
# candidate programs.
set -e
user=$1 start=$2 command=$3 path=$4
shift 4
umask 022
mkdir -p /workspace /home/sandbox 2>/dev/null || sudo -n mkdir -p -m 1777 /workspace /home/sandbox
tar -xpf /tmp/.belljar.tar -C / --no-same-owner --no-overwrite-dir
rm -f /tmp/.belljar.tar
if [ -n "$user" ]; then
    chown -R "$user" /workspace /home/sandbox /tmp/.belljar
fi
if ! cd "$start" 2>/dev/null; then
    if [ -d "$start" ]; then echo "workdir EACCES"; elif [ -e "$start" ]; then echo "workdir ENOTDIR"; else echo "workdir ENOENT"; fi
    exit 0
fi
if [ -n "$command" ] && ! (PATH=$path && command -v -- "$command" >/dev/null); then
    case $command in
    */*) if [ -e "$command" ]; then echo "command EACCES"; else echo "command ENOENT"; fi ;;
    *) echo "command ENOENT" ;;
    esac
fi
for name; do
    if found=$(PATH=$path && command -v -- "$name"); then
        echo "program $name $("$found" --version 2>/dev/null </dev/null | head -n 1)"
    fi
done
