# Packs a run's results: the return value of main, and artifacts. $1: size limit of the result; $2: size limit
# of an artifact; $3: number of artifacts; $4: their extensions. Fails if there are none.
cd /
# Of a result beyond the limit, one byte more than the limit shows that.
if [ "$(find tmp/.belljar/result -maxdepth 0 -type f -size "+$1c" 2>/dev/null)" ]; then
    head -c "$(($1 + 1))" tmp/.belljar/result >tmp/.belljar/start && mv tmp/.belljar/start tmp/.belljar/result
fi
{
    find tmp/.belljar/result -maxdepth 0 -type f -size +0c -print0
    find workspace/artifacts -maxdepth 1 -type f -size +0c -size "-$(($2 + 1))c" ! -name '.*' -iregex ".*\.\($4\)" -print0 |
        LC_ALL=C sort -z | head -z -n "$3"
} 2>/dev/null >/tmp/.belljar/left
[ -s /tmp/.belljar/left ] || exit 1
tar -cf /tmp/.belljar/left.tar --null -T /tmp/.belljar/left
