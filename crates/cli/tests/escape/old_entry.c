// The 32-bit entry points kill the process before the kernel looks at the call.
// expect: succeeded
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__x86_64__)
static long through_int80(long number) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(0), "c"(0), "d"(0) : "memory", "r8", "r9", "r10", "r11");
    return result;
}
int main(void) {
    // 20 getpid, 359 socket, 120 clone, 310 unshare, 26 ptrace, in the numbering of the 32-bit table.
    const long numbers[] = {20, 359, 120, 310, 26};
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        pid_t child = fork();
        if (child == 0) {
            through_int80(numbers[i]);
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        if (!WIFSIGNALED(status) || (WTERMSIG(status) != SIGSYS && WTERMSIG(status) != SIGSEGV)) {
            printf("BROKEN: 32-bit call %ld was answered (status %x)\n", numbers[i], status);
            return 0;
        }
    }
    puts("HELD: 5 calls ended their process");
    return 0;
}
#else
int main(void) {
    puts("HELD: this machine has no such entry");
    return 0;
}
#endif
