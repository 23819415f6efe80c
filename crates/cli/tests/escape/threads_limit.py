# Threads count like processes.
# expect: succeeded
# needs: cgroup.pids
# with: --processes 16
import threading

from probe import check, finish

end = threading.Event()
threads = []
try:
    for _ in range(200):
        thread = threading.Thread(target=end.wait)
        thread.start()
        threads.append(thread)
    check("threads end", False, len(threads))
except RuntimeError as error:
    check("threads end", len(threads) < 16, f"{len(threads)}: {error}")
end.set()
for thread in threads:
    thread.join()
finish(1)
