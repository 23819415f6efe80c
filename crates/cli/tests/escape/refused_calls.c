// Floods the seccomp filter and its notification listener with refused calls: a million from 64 threads.
// expect: succeeded
// with: --processes 128 --timeout 15s
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS = 64, CALLS = 1000000 / THREADS };
static int refused[THREADS];

static void *flood(void *own) {
    int *count = own;
    for (int call = 0; call < CALLS; call++) {
        long result = syscall(SYS_unshare, 0x10000000);
        if (result == -1 && (errno == EPERM || errno == ENOSYS)) (*count)++;
    }
    return 0;
}

int main(void) {
    pthread_t threads[THREADS];
    for (int at = 0; at < THREADS; at++) {
        if (pthread_create(&threads[at], 0, flood, &refused[at]) != 0) {
            printf("BROKEN: no thread %d\n", at);
            return 1;
        }
    }
    long all = 0;
    for (int at = 0; at < THREADS; at++) {
        pthread_join(threads[at], 0);
        all += refused[at];
    }
    printf("%s: %ld calls were refused\n", all == (long)THREADS * CALLS ? "HELD" : "BROKEN", all);
    return 0;
}
