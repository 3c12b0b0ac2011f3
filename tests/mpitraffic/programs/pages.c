/* Loaded into a program, pretends to the library $PAGES_OF that pages have 64 KB: it cannot map from other offsets. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 65536 };

static int is_meant(void *caller)
{
    const char *library = getenv("PAGES_OF");
    Dl_info from;

    return library && dladdr(caller, &from) && from.dli_fname && !strcmp(from.dli_fname, library);
}

long sysconf(int name)
{
    long (*real)(int) = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");

    return name == _SC_PAGESIZE && is_meant(__builtin_return_address(0)) ? PAGE : real(name);
}

void *mmap(void *at, size_t length, int protection, int flags, int file, off_t offset)
{
    void *(*real)(void *, size_t, int, int, int, off_t) = dlsym(RTLD_NEXT, "mmap");

    if (offset % PAGE && is_meant(__builtin_return_address(0))) {
        errno = EINVAL;
        return MAP_FAILED;
    }
    return real(at, length, protection, flags, file, offset);
}
