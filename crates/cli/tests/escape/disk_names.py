# File names are limited like bytes; a program that survives the limit continues.
# expect: succeeded
# with: --disk 32M --timeout 60s
import errno
import os

from probe import check, finish

made = 0
try:
    while made < 100_000:
        os.close(os.open(f"/tmp/{made}", os.O_CREAT | os.O_WRONLY))
        made += 1
    check("names end", False, made)
except OSError as error:
    check("names end", error.errno == errno.ENOSPC, f"{made}: {error}")
check("there are some", made > 500, made)
for number in range(made):
    os.remove(f"/tmp/{number}")
open("/workspace/again", "w").close()
check("there is room again", os.path.exists("/workspace/again"))
finish(3)
