/* The functions of CUDA's driver that the OSU Micro-Benchmarks call, found when they are called.
 *
 * The driver's library (libcuda) comes with the driver alone, so no package can be linked with on a machine without
 * one. A program with this object links, and starts, anywhere; where there is no driver, its functions return
 * CUDA_ERROR_NO_DEVICE. Types and values as in cuda.h of CUDA 12: a CUdevice is an int, a CUcontext a pointer.
 */
#include <dlfcn.h>
#include <stddef.h>

enum { CUDA_ERROR_NO_DEVICE = 100 };

static void *function(const char *name)
{
    static void *driver = NULL;

    if (driver == NULL)
        driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    return driver == NULL ? NULL : dlsym(driver, name);
}

/* Define a function that calls the driver's of that name. */
#define FORWARD(name, parameters, arguments)                      \
    int name parameters                                           \
    {                                                             \
        int(*call) parameters = (int(*) parameters)function(#name); \
        return call == NULL ? CUDA_ERROR_NO_DEVICE : call arguments; \
    }

FORWARD(cuInit, (unsigned int flags), (flags))
FORWARD(cuDeviceGet, (int *device, int ordinal), (device, ordinal))
FORWARD(cuDevicePrimaryCtxRetain, (void **context, int device), (context, device))
/* No benchmark calls it; configure looks for it. */
FORWARD(cuPointerGetAttribute, (void *value, int attribute, unsigned long long pointer), (value, attribute, pointer))
