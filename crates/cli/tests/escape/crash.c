// A crash is reported with its signal.
// expect: failed SIGSEGV
#include <signal.h>
int main(void) { raise(SIGSEGV); return 0; }
