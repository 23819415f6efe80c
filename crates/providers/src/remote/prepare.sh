# Puts a run's files where they belong, and says what it found: on each line a word and what it is about.
# $1 whose the files are ('' leaves them), $2 where the program starts, $3 the command ('' for code), $4 where programs are
# looked for, and then the programs that would do.
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
