/* CPU affinity on CPUs that a node only claims to have.
 *
 * Preloaded into the processes of a twin's nodes. There, /sys and /proc/cpuinfo show the CPUs of a site's nodes (see
 * machine.py); the kernel, which has 2 or 4, would refuse to bind anything to CPU 27. So the mask of a thread is kept
 * here, and the kernel is never asked to bind: the threads run wherever there is room.
 *
 * A mask must be inherited over fork, exec and pthread_create, be readable of another process, and cost no file per
 * process. The timer slack of a thread does just this (prctl(2), PR_SET_TIMERSLACK; proc(5), timerslack_ns): one of
 * 50,000 ns + N says "mask N" of a table that all processes of the node map. N is 0, the kernel's default, where
 * nothing was bound. What it costs: timers that are late by some microseconds more.
 *
 * Nothing here prints, and where the table is absent every call goes to the C library's own function.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#ifndef TABLE
#define TABLE "/run/claimed/masks"
#endif

#define MAX_CPUS 1024
#define WORD_BITS (8 * sizeof(unsigned long))
#define WORDS (MAX_CPUS / WORD_BITS)
#define MASKS 16384
#define DEFAULT_SLACK 50000
#define PUBLIC __attribute__((visibility("default")))

struct mask {
    unsigned long words[WORDS];
};

enum { FREE, TAKEN, WRITTEN };

/* The file: the number of CPUs as a little-endian 32-bit number and zeros (machine.py), filled by the processes. */
struct table {
    uint32_t cpus;
    uint32_t unused;
    _Atomic uint32_t states[MASKS];
    struct mask masks[MASKS]; /* number 0 is not used: it stands for all CPUs */
};

static struct table *_Atomic the_table;
static atomic_bool tried;

/* The table; NULL where this node claims nothing. */
static struct table *table(void)
{
    struct table *found = atomic_load(&the_table);
    if (found || atomic_load(&tried))
        return found;
    int before = errno, fd = open(TABLE, O_RDWR | O_CLOEXEC);
    struct stat about;
    if (fd >= 0) {
        if (fstat(fd, &about) == 0 && (size_t)about.st_size >= sizeof(struct table)) {
            void *place = mmap(NULL, sizeof(struct table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (place != MAP_FAILED) {
                found = place;
                if (found->cpus == 0 || found->cpus > MAX_CPUS) {
                    munmap(place, sizeof(struct table));
                    found = NULL;
                }
            }
        }
        close(fd);
    }
    atomic_store(&the_table, found);
    atomic_store(&tried, true);
    errno = before;
    return found;
}

static void *next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

/* ---- Masks and their numbers ---- */

static size_t mask_bytes(const struct table *t) /* as the kernel counts them: whole words */
{
    return (t->cpus + WORD_BITS - 1) / WORD_BITS * sizeof(unsigned long);
}

static struct mask all_cpus(const struct table *t)
{
    struct mask all = {{0}};
    for (uint32_t cpu = 0; cpu < t->cpus; cpu++)
        all.words[cpu / WORD_BITS] |= 1UL << cpu % WORD_BITS;
    return all;
}

/* The number of a mask, entered into the table if it is new; -1: the table is full. A process that dies while it writes
 * loses one place, nothing else. */
static int number_of(struct table *t, const struct mask *wanted)
{
    struct mask all = all_cpus(t);
    if (memcmp(wanted, &all, sizeof all) == 0)
        return 0;
    for (int number = 1; number < MASKS; number++) {
        uint32_t state = FREE;
        if (atomic_compare_exchange_strong(&t->states[number], &state, TAKEN)) {
            t->masks[number] = *wanted;
            atomic_store(&t->states[number], WRITTEN);
            return number;
        }
        if (state == WRITTEN && memcmp(wanted, &t->masks[number], sizeof *wanted) == 0)
            return number;
    }
    return -1;
}

static struct mask mask_of(struct table *t, long slack)
{
    long number = slack - DEFAULT_SLACK;
    if (number > 0 && number < MASKS && atomic_load(&t->states[number]) == WRITTEN)
        return t->masks[number];
    return all_cpus(t);
}

/* ---- The timer slack of a thread ---- */

static bool is_own(pid_t tid)
{
    return tid == 0 || tid == (pid_t)gettid();
}

/* /proc/TID/timerslack_ns; -1 with errno where the thread, or the right to it, is not there. */
static int open_slack(pid_t tid, int flags)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/timerslack_ns", (int)tid);
    int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        errno = ESRCH;
    return fd;
}

static int read_slack(pid_t tid, long *slack)
{
    if (is_own(tid)) {
        *slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
        return *slack < 0 ? -1 : 0;
    }
    char text[32] = "";
    int fd = open_slack(tid, O_RDONLY);
    if (fd < 0)
        return -1;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    /* The kernel tells any user the affinity of any process, but the slack only to those who may set it. */
    *slack = got > 0 ? strtol(text, NULL, 10) : DEFAULT_SLACK;
    return 0;
}

static int write_slack(pid_t tid, long slack)
{
    if (is_own(tid))
        return prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);
    char text[32];
    int length = snprintf(text, sizeof text, "%ld", slack);
    int fd = open_slack(tid, O_WRONLY);
    if (fd < 0)
        return -1;
    ssize_t written = write(fd, text, (size_t)length);
    int why = errno;
    close(fd);
    errno = why;
    return written == length ? 0 : -1;
}

/* ---- sched_setaffinity(2) and sched_getaffinity(2), as the kernel answers them ---- */

static int set_affinity(struct table *t, pid_t tid, size_t size, const void *given)
{
    struct mask wanted = {{0}}, all = all_cpus(t);
    bool any = false;
    if (tid < 0 || (!given && size)) {
        errno = tid < 0 ? EINVAL : EFAULT;
        return -1;
    }
    memcpy(&wanted, given, size < sizeof wanted ? size : sizeof wanted);
    for (size_t word = 0; word < WORDS; word++)
        any |= (wanted.words[word] &= all.words[word]) != 0;
    if (!any) {
        errno = EINVAL;
        return -1;
    }
    int number = number_of(t, &wanted);
    if (number < 0) {
        errno = ENOMEM;
        return -1;
    }
    return write_slack(tid, DEFAULT_SLACK + number);
}

/* The number of bytes written, as the system call (glibc's function fills the rest with zeros and returns 0). */
static long get_affinity(struct table *t, pid_t tid, size_t size, void *taken)
{
    long slack;
    if (tid < 0 || size < mask_bytes(t) || size % sizeof(unsigned long)) {
        errno = EINVAL;
        return -1;
    }
    if (read_slack(tid, &slack))
        return -1;
    struct mask mask = mask_of(t, slack);
    memcpy(taken, &mask, mask_bytes(t));
    return (long)mask_bytes(t);
}

static int get_affinity_filled(struct table *t, pid_t tid, size_t size, void *taken)
{
    long written = get_affinity(t, tid, size, taken);
    if (written < 0)
        return -1;
    memset((char *)taken + written, 0, size - (size_t)written);
    return 0;
}

/* A CPU of the calling thread's mask: the kernel's own number would lie outside of it. */
static int current_cpu(struct table *t, unsigned real)
{
    struct mask mask = mask_of(t, prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0));
    unsigned count = 0, wanted;
    for (size_t word = 0; word < WORDS; word++)
        count += (unsigned)__builtin_popcountl(mask.words[word]);
    wanted = real % count;
    for (uint32_t cpu = 0; cpu < t->cpus; cpu++)
        if (mask.words[cpu / WORD_BITS] >> cpu % WORD_BITS & 1 && wanted-- == 0)
            return (int)cpu;
    return 0;
}

PUBLIC int sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *mask)
{
    struct table *t = table();
    if (t)
        return set_affinity(t, pid, size, mask);
    return ((int (*)(pid_t, size_t, const cpu_set_t *))next("sched_setaffinity"))(pid, size, mask);
}

PUBLIC int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *mask)
{
    struct table *t = table();
    if (t)
        return get_affinity_filled(t, pid, size, mask);
    return ((int (*)(pid_t, size_t, cpu_set_t *))next("sched_getaffinity"))(pid, size, mask);
}

PUBLIC int sched_getcpu(void)
{
    struct table *t = table();
    int real = ((int (*)(void))next("sched_getcpu"))();
    return t && real >= 0 ? current_cpu(t, (unsigned)real) : real;
}

PUBLIC int getcpu(unsigned *cpu, unsigned *node)
{
    struct table *t = table();
    int status = ((int (*)(unsigned *, unsigned *))next("getcpu"))(cpu, node);
    if (t && status == 0 && cpu)
        *cpu = (unsigned)current_cpu(t, *cpu);
    return status;
}

/* LLVM's OpenMP and libnuma make the system calls themselves, through this function. */
PUBLIC long syscall(long number, ...)
{
    static long (*_Atomic real)(long, ...);
    long arguments[6];
    va_list given;
    va_start(given, number);
    for (int i = 0; i < 6; i++)
        arguments[i] = va_arg(given, long);
    va_end(given);
    struct table *t;
    if (number == SYS_sched_setaffinity && (t = table()))
        return set_affinity(t, (pid_t)arguments[0], (size_t)arguments[1], (void *)arguments[2]);
    if (number == SYS_sched_getaffinity && (t = table()))
        return get_affinity(t, (pid_t)arguments[0], (size_t)arguments[1], (void *)arguments[2]);
    long (*function)(long, ...) = atomic_load(&real);
    if (!function) {
        function = (long (*)(long, ...))next("syscall");
        atomic_store(&real, function);
    }
    return function(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

/* ---- POSIX threads: these return the error instead of setting errno ---- */

/* The id of a thread. No function of glibc 2.36 tells it: it is looked up where this thread's own id lies. */
static pid_t id_of(pthread_t thread)
{
    if (pthread_equal(thread, pthread_self()))
        return 0;
    pid_t own = gettid();
    for (size_t offset = 0; offset < 1024; offset += sizeof(pid_t))
        if (*(pid_t *)((char *)pthread_self() + offset) == own)
            return *(pid_t *)((char *)thread + offset);
    return 0;
}

static int as_error(int status)
{
    return status ? errno : 0;
}

PUBLIC int pthread_setaffinity_np(pthread_t thread, size_t size, const cpu_set_t *mask)
{
    struct table *t = table();
    if (!t)
        return ((int (*)(pthread_t, size_t, const cpu_set_t *))next("pthread_setaffinity_np"))(thread, size, mask);
    int before = errno, error = as_error(set_affinity(t, id_of(thread), size, mask));
    errno = before;
    return error;
}

PUBLIC int pthread_getaffinity_np(pthread_t thread, size_t size, cpu_set_t *mask)
{
    struct table *t = table();
    if (!t)
        return ((int (*)(pthread_t, size_t, cpu_set_t *))next("pthread_getaffinity_np"))(thread, size, mask);
    int before = errno, error = as_error(get_affinity_filled(t, id_of(thread), size, mask));
    errno = before;
    return error;
}

struct start {
    void *(*routine)(void *);
    void *argument;
    cpu_set_t mask;
};

static void *bound_start(void *given)
{
    struct start start = *(struct start *)given;
    free(given);
    struct table *t = table();
    if (t)
        set_affinity(t, 0, sizeof start.mask, &start.mask);
    return start.routine(start.argument);
}

/* Attributes may hold a mask (pthread_attr_setaffinity_np: libgomp does this for OMP_PROC_BIND), which pthread_create
 * would hand to the kernel: so it is taken out for the call, and the new thread sets it. */
PUBLIC int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*routine)(void *), void *argument)
{
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    static int (*_Atomic real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = atomic_load(&real);
    if (!create) {
        create = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))next("pthread_create");
        atomic_store(&real, create);
    }
    struct table *t = attributes ? table() : NULL;
    if (!t)
        return create(thread, attributes, routine, argument);
    cpu_set_t mask, none;
    struct mask all = all_cpus(t);
    bool is_bound = false, any = false; /* without a mask, glibc tells one of ones only */
    if (pthread_attr_getaffinity_np(attributes, sizeof mask, &mask))
        return create(thread, attributes, routine, argument);
    for (size_t word = 0; word < WORDS; word++) {
        unsigned long bits = ((unsigned long *)&mask)[word];
        is_bound |= bits != ~0UL;
        any |= (bits & all.words[word]) != 0;
    }
    if (!is_bound)
        return create(thread, attributes, routine, argument);
    if (!any)
        return EINVAL;
    struct start *start = malloc(sizeof *start);
    if (!start)
        return EAGAIN;
    *start = (struct start){routine, argument, mask};
    CPU_ZERO(&none);
    pthread_mutex_lock(&one_at_a_time);
    pthread_attr_setaffinity_np((pthread_attr_t *)attributes, 0, &none); /* takes the mask out */
    int error = create(thread, attributes, bound_start, start);
    pthread_attr_setaffinity_np((pthread_attr_t *)attributes, sizeof mask, &mask);
    pthread_mutex_unlock(&one_at_a_time);
    if (error)
        free(start);
    return error;
}

/* ---- How many CPUs there are (glibc asks /sys first, and so do most others) ---- */

PUBLIC int get_nprocs(void)
{
    struct table *t = table();
    return t ? (int)t->cpus : ((int (*)(void))next("get_nprocs"))();
}

PUBLIC int get_nprocs_conf(void)
{
    struct table *t = table();
    return t ? (int)t->cpus : ((int (*)(void))next("get_nprocs_conf"))();
}

/* MPICH stands in for MVAPICH, and refuses to start with the names of algorithms that MVAPICH alone has. */
static void forget_what_mvapich_alone_knows(void)
{
    static const char prefix[] = "MPIR_CVAR_";
    for (char **entry = environ; entry && *entry;) {
        const char *equals = strchr(*entry, '=');
        size_t length = equals ? (size_t)(equals - *entry) : 0;
        char name[128];
        if (strncmp(*entry, prefix, sizeof prefix - 1) == 0 && length < sizeof name && equals &&
            strncmp(equals + 1, "osu_", 4) == 0) {
            memcpy(name, *entry, length);
            name[length] = '\0';
            unsetenv(name);
            entry = environ; /* unsetenv moves what follows */
        } else {
            entry++;
        }
    }
}

/* 56 threads that wait for each other in loops on 2 real cores take minutes for what takes a second otherwise. */
__attribute__((constructor)) static void suit_the_node(void)
{
    if (table()) {
        setenv("OMP_WAIT_POLICY", "passive", 0);
        forget_what_mvapich_alone_knows();
    }
}
