// The x32 numbers of allowed calls are unknown calls.
// expect: succeeded
#include <errno.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
#if defined(__x86_64__)
    const long x32 = 0x40000000;
    for (long number = 0; number < 600; number++) {
        errno = 0;
        if (syscall(x32 | number, -1, -1, -1, -1, -1, -1) != -1 || errno != ENOSYS) {
            printf("BROKEN: x32 call %ld was answered with errno %d\n", number, errno);
            return 0;
        }
    }
    puts("HELD: 600 numbers are unknown");
#else
    puts("HELD: this machine has no such numbers");
#endif
    return 0;
}
