# Packs a run's results: the return value of main, artifacts, and a list of what is left out, each line with the
# code of its reason. $1: size limit of the result; $2: number of artifacts; $3: size limit of an artifact;
# $4: of all artifacts; $5: number of entries; $6: number of folders; the rest: the codes. Fails if there is nothing.
cd /
result=$1 files=$2 file_bytes=$3 total_bytes=$4 entries=$5 depth=$6
too_large=$7 together=$8 too_many=$9
shift 9
link=$1 special=$2 name=$3 too_deep=$4 too_many_entries=$5 unreadable=$6
top=workspace/artifacts
line='
'
own=tmp/.belljar
: >$own/left
: >$own/skipped
skip() { printf '%s %s\n' "$1" "${2#"$top/"}" >>$own/skipped; }
# Of a result beyond the limit, one byte more than the limit shows that.
if [ "$(find $own/result -maxdepth 0 -type f -size "+${result}c" 2>/dev/null)" ]; then
    head -c "$((result + 1))" $own/result >$own/start && mv $own/start $own/result
fi
find $own/result -maxdepth 0 -type f -size +0c 2>/dev/null >>$own/left
if [ -L $top ]; then
    echo "$link " >>$own/skipped
elif [ -d $top ]; then
    find $top -mindepth 1 -maxdepth "$((depth + 1))" ! -type d ! -path "*$line*" -printf '%y %s %p/\n' 2>/dev/null |
        LC_ALL=C sort -k 3 | head -n "$((entries + 1))" | {
        count=0 total=0 seen=0
        while read -r kind size path; do
            path=${path%/}
            seen=$((seen + 1))
            if [ "$seen" -gt "$entries" ]; then
                echo "$too_many_entries " >>$own/skipped
            elif [ "$kind" = l ]; then
                skip "$link" "$path"
            elif [ "$kind" != f ]; then
                skip "$special" "$path"
            elif [ ! -r "$path" ]; then
                skip "$unreadable" "$path"
            elif [ "$size" -gt "$file_bytes" ]; then
                skip "$too_large" "$path"
            elif [ "$count" -ge "$files" ]; then
                skip "$too_many" "$path"
            elif [ "$((total + size))" -gt "$total_bytes" ]; then
                skip "$together" "$path"
            else
                count=$((count + 1)) total=$((total + size))
                printf '%s\n' "$path" >>$own/left
            fi
        done
    }
    find $top -mindepth 1 ! -type d -path "*$line*" -printf "$name (a name with a line break)\n" 2>/dev/null | head -n "$files" >>$own/skipped
    find $top -mindepth "$((depth + 1))" -maxdepth "$((depth + 1))" -type d ! -path "*$line*" -printf "$too_deep %P\n" 2>/dev/null |
        head -n "$files" >>$own/skipped
elif [ -e $top ]; then
    echo "$special " >>$own/skipped
fi
if [ -s $own/skipped ]; then echo $own/skipped >>$own/left; fi
[ -s $own/left ] || exit 1
tr '\n' '\0' <$own/left | tar -cf $own/left.tar --null -T -
