/* A recorder of MPI calls that is loaded into a program with LD_PRELOAD.
 *
 * Each process writes one file, which it maps: what a killed process recorded stays in the file. Space is reserved before
 * it is mapped, because a store to a mapped page without space on disk would kill the program. The file is a header and
 * chunks of 64-byte records; a thread owns its chunks and is the only one to change them.
 */
#define _GNU_SOURCE
#include "recorder.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

enum { CALL = 1, NAME = 5, COMMUNICATOR = 6, PHASE = 7, EVENT = 8, MEMBERS = 9 };
enum { NAMES_CALL = 0, NAMES_COMMUNICATOR = 1, NAMES_PHASE = 2 };
enum { HEADER_BYTES = 4096, CHUNK_RECORDS = 256, MOST_SLOTS = 4096, MOST_PENDING = 1 << 20, MOST_PHASES = 256 };
enum { BUCKETS = 4096, CACHED = 16, RECENT = 32, DEPTH = 16, NAME_BYTES = 40 };

struct record {
    uint32_t kind;
    int32_t a, b, c;
    uint32_t phase;
    uint32_t thread;
    uint64_t v[5];
};

struct usage {
    uint64_t user_ns, system_ns, most_memory_kb, minor_faults, major_faults, voluntary_switches, involuntary_switches;
    uint64_t read_calls, write_calls, read_bytes, written_bytes, disk_read_bytes, disk_written_bytes;
};

struct header {
    char magic[8];
    uint32_t header_bytes, record_bytes;
    int32_t rank, size, pid, thread_level;
    uint32_t finalized, waits_for_all;
    uint64_t lost_records, lost_events, lost_requests, lost_communicators;
    uint64_t first_tick, first_ns, first_epoch_ns, started_tick, last_tick, last_ns;
    struct usage first, last;
    char host[128], command[256], library[256], job[128];
};

struct thread {
    int depth;
    int id;
    uint32_t phase;
    int nested;
    uint32_t outer[DEPTH];
    uint64_t entered[DEPTH], cpu[DEPTH], in_mpi[DEPTH];
    uint64_t mpi; /* ticks in MPI */
    struct record *chunk;
    int used;
    struct record **index;
    uint32_t capacity, filled;
    struct {
        MPI_Comm comm;
        uint32_t generation;
        struct slot *slot;
    } cache[CACHED];
    struct record *recent[RECENT];
    struct operation *captured;
    int capturing, captured_count, captured_capacity;
    struct thread *free;
};

static struct {
    volatile int on; /* 0: not yet, 1: records, -1: never */
    volatile int paused;
    int process;
    int file;
    struct header *header;
    struct header unsaved;
    off_t length, limit;
    off_t header_bytes; /* offsets of mappings are multiples of a page: 64 KB on some ARM and POWER systems */
    int chunk_records;
    pthread_mutex_t lock;
    pthread_key_t key;
    struct thread *free;
    int threads;
    uint64_t next_update, update_ticks;
    long events;
    int invariant_ticks;
    int keyval, window_keyval;
    volatile uint32_t generation;
    struct slot *slots[MOST_SLOTS];
    int slots_count;
    int *world_ranks;
    MPI_Group world_group;
    char *named;
    char phases[MOST_PHASES][NAME_BYTES];
    int phases_count;
    int waits_for_all;
    void *library;
    MPI_Datatype byte;
    MPI_Comm world;
} recorder = {.lock = PTHREAD_MUTEX_INITIALIZER};

static __thread struct thread *own __attribute__((tls_model("initial-exec")));

/* MPI's own functions. The recorder is not linked with MPI: programs without MPI load it as well, and Python loads MPI
 * where the dynamic linker does not look for the recorder's references. */

static int find_library(struct dl_phdr_info *info, size_t size, void *found)
{
    const char *name = strrchr(info->dlpi_name, '/');

    (void)size;
    name = name ? name + 1 : info->dlpi_name;
    if (strncmp(name, "libmpi", 6) && strncmp(name, "libmpich", 8))
        return 0;
    void *library = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    if (library && dlsym(library, "PMPI_Init")) {
        *(void **)found = library;
        return 1;
    }
    return 0;
}

void *recorder_symbol(const char *name)
{
    void *symbol = recorder.library ? dlsym(recorder.library, name) : NULL;

    if (!symbol)
        symbol = dlsym(RTLD_DEFAULT, name);
    if (!symbol && !recorder.library) {
        dl_iterate_phdr(find_library, &recorder.library);
        symbol = recorder.library ? dlsym(recorder.library, name) : NULL;
    }
    return symbol;
}

#define REAL(name)                                                                                                     \
    ({                                                                                                                 \
        static __typeof__(&P##name) real;                                                                              \
        if (UNLIKELY(!real))                                                                                           \
            real = (__typeof__(&P##name))recorder_symbol("P" #name);                                                   \
        real;                                                                                                          \
    })

/* Time */

static uint64_t nanoseconds(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline uint64_t recorder_ticks(void)
{
#if defined(__x86_64__)
    if (recorder.invariant_ticks)
        return __rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#endif
    return nanoseconds(CLOCK_MONOTONIC);
}

static void read_usage(struct usage *usage)
{
    struct rusage now;
    char text[512];

    getrusage(RUSAGE_SELF, &now);
    usage->user_ns = (uint64_t)now.ru_utime.tv_sec * 1000000000u + (uint64_t)now.ru_utime.tv_usec * 1000u;
    usage->system_ns = (uint64_t)now.ru_stime.tv_sec * 1000000000u + (uint64_t)now.ru_stime.tv_usec * 1000u;
    usage->most_memory_kb = (uint64_t)now.ru_maxrss;
    usage->minor_faults = (uint64_t)now.ru_minflt;
    usage->major_faults = (uint64_t)now.ru_majflt;
    usage->voluntary_switches = (uint64_t)now.ru_nvcsw;
    usage->involuntary_switches = (uint64_t)now.ru_nivcsw;
    int file = open("/proc/self/io", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    if (length <= 0)
        return;
    text[length] = 0;
    unsigned long long in, out, reads, writes, disk_in, disk_out;
    if (sscanf(text, "rchar: %llu wchar: %llu syscr: %llu syscw: %llu read_bytes: %llu write_bytes: %llu", &in, &out,
               &reads, &writes, &disk_in, &disk_out) == 6) {
        usage->read_bytes = in;
        usage->written_bytes = out;
        usage->read_calls = reads;
        usage->write_calls = writes;
        usage->disk_read_bytes = disk_in;
        usage->disk_written_bytes = disk_out;
    }
}

static void update(void)
{
    if (pthread_mutex_trylock(&recorder.lock))
        return;
    uint64_t ticks = recorder_ticks();
    recorder.header->last_tick = ticks;
    recorder.header->last_ns = nanoseconds(CLOCK_MONOTONIC);
    read_usage(&recorder.header->last);
    recorder.next_update = ticks + recorder.update_ticks;
    pthread_mutex_unlock(&recorder.lock);
}

/* Records */

static void say(const char *what, const char *why)
{
    dprintf(2, "mpitraffic: rank %d: %s: %s\n", recorder.header ? recorder.header->rank : -1, what, why);
}

/* Recording leaves this much of a file system to the program's own results. */
#define SPARE_BYTES (16 << 20)

static int leaves_space(off_t bytes)
{
    struct statvfs disk;

    return fstatvfs(recorder.file, &disk) || disk.f_bavail * disk.f_frsize >= (uint64_t)(bytes + SPARE_BYTES);
}

static void *map(off_t bytes)
{
    int failure;
    struct rlimit most;

    if (recorder.file < 0 || recorder.length + bytes > recorder.limit)
        return NULL;
    /* Beyond the limit of a file's size the kernel sends a signal, which ends the program. */
    if (!getrlimit(RLIMIT_FSIZE, &most) && most.rlim_cur != RLIM_INFINITY &&
        (rlim_t)(recorder.length + bytes) > most.rlim_cur)
        failure = EFBIG;
    else if (!leaves_space(bytes))
        failure = ENOSPC;
    else
        do
            failure = posix_fallocate(recorder.file, recorder.length, bytes);
        while (failure == EINTR);
    if (failure) {
        say("cannot write the profile", strerror(failure));
        recorder.limit = recorder.length;
        return NULL;
    }
    void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, recorder.file, recorder.length);
    if (memory == MAP_FAILED)
        return NULL;
    recorder.length += bytes;
    return memory;
}

static struct record *append(struct thread *thread)
{
    if (!thread->chunk || thread->used == recorder.chunk_records) {
        pthread_mutex_lock(&recorder.lock);
        struct record *chunk = map(recorder.chunk_records * (off_t)sizeof *chunk);
        pthread_mutex_unlock(&recorder.lock);
        if (!chunk)
            return NULL;
        thread->chunk = chunk;
        thread->used = 0;
    }
    struct record *record = &thread->chunk[thread->used++];
    record->thread = (uint32_t)thread->id;
    return record;
}

static void name(struct thread *thread, int names, int id, const char *text)
{
    struct record *record = append(thread);

    if (!record)
        return;
    strncpy((char *)record->v, text, NAME_BYTES - 1);
    record->a = names;
    record->b = id;
    record->kind = NAME;
}

static uint32_t mix(uint32_t kind, int a, int b, int c, uint32_t phase)
{
    uint64_t key = (uint64_t)kind << 56 ^ (uint64_t)(uint32_t)a << 40 ^ (uint64_t)(uint32_t)b << 20 ^ (uint32_t)c;

    key = (key ^ (uint64_t)phase << 30) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(key >> 32);
}

static int grow(struct thread *thread)
{
    uint32_t capacity = thread->capacity ? thread->capacity * 2 : 512;
    struct record **index = calloc(capacity, sizeof *index);

    if (!index)
        return 0;
    for (uint32_t i = 0; i < thread->capacity; i++) {
        struct record *record = thread->index[i];
        if (!record)
            continue;
        uint32_t at = mix(record->kind, record->a, record->b, record->c, record->phase) & (capacity - 1);
        while (index[at])
            at = (at + 1) & (capacity - 1);
        index[at] = record;
    }
    free(thread->index);
    thread->index = index;
    thread->capacity = capacity;
    return 1;
}

static struct record *find_in_index(struct thread *thread, uint32_t kind, int a, int b, int c, uint32_t phase)
{
    uint32_t at = mix(kind, a, b, c, phase) & (thread->capacity - 1);
    struct record *record;

    while ((record = thread->index[at])) {
        if (record->kind == kind && record->a == a && record->b == b && record->c == c && record->phase == phase)
            return record;
        at = (at + 1) & (thread->capacity - 1);
    }
    if (thread->filled * 2 >= thread->capacity) {
        if (!grow(thread))
            return NULL;
        return find_in_index(thread, kind, a, b, c, phase);
    }
    record = append(thread);
    if (!record) {
        __atomic_add_fetch(&recorder.header->lost_records, 1, __ATOMIC_RELAXED);
        return NULL;
    }
    record->a = a;
    record->b = b;
    record->c = c;
    record->phase = phase;
    record->v[3] = UINT64_MAX;
    record->kind = kind;
    thread->index[at] = record;
    thread->filled++;
    return record;
}

static inline struct record *find(struct thread *thread, uint32_t kind, int a, int b, int c, uint32_t phase)
{
    struct record **recent = &thread->recent[((uint32_t)a ^ kind << 3) % RECENT], *record = *recent;

    if (record && record->kind == kind && record->a == a && record->b == b && record->c == c && record->phase == phase)
        return record;
    if ((record = find_in_index(thread, kind, a, b, c, phase)))
        *recent = record;
    return record;
}

/* Threads */

static void release(void *ended)
{
    struct thread *thread = ended;

    pthread_mutex_lock(&recorder.lock);
    thread->free = recorder.free;
    recorder.free = thread;
    pthread_mutex_unlock(&recorder.lock);
    own = NULL;
}

static struct thread *this_thread(void)
{
    struct thread *thread;

    pthread_mutex_lock(&recorder.lock);
    thread = recorder.free;
    if (thread)
        recorder.free = thread->free;
    else if ((thread = calloc(1, sizeof *thread))) {
        thread->id = recorder.threads++;
        if (!grow(thread)) {
            free(thread);
            thread = NULL;
        }
    }
    pthread_mutex_unlock(&recorder.lock);
    if (!thread)
        return NULL;
    thread->phase = 0;
    thread->nested = thread->depth = 0;
    memset(thread->cache, 0, sizeof thread->cache);
    memset(thread->recent, 0, sizeof thread->recent);
    pthread_setspecific(recorder.key, thread);
    return own = thread;
}

static void forked(void)
{
    /* The child shares the file with its parent, which goes on writing it. */
    if (recorder.on > 0)
        recorder.on = -1;
    pthread_mutex_init(&recorder.lock, NULL);
}

/* Start and end */

static int not_copied(MPI_Comm comm, int keyval, void *extra, void *in, void *out, int *flag)
{
    (void)comm, (void)keyval, (void)extra, (void)in, (void)out;
    *flag = 0;
    return MPI_SUCCESS;
}

static int freed(MPI_Comm comm, int keyval, void *slot, void *extra)
{
    (void)comm, (void)keyval, (void)extra;
    __atomic_store_n(&((struct slot *)slot)->alive, 0, __ATOMIC_RELEASE);
    __atomic_add_fetch(&recorder.generation, 1, __ATOMIC_RELEASE);
    return MPI_SUCCESS;
}

static int window_not_copied(MPI_Win win, int keyval, void *extra, void *in, void *out, int *flag)
{
    (void)win, (void)keyval, (void)extra, (void)in, (void)out;
    *flag = 0;
    return MPI_SUCCESS;
}

static int window_freed(MPI_Win win, int keyval, void *slot, void *extra)
{
    (void)win, (void)keyval, (void)slot, (void)extra;
    return MPI_SUCCESS;
}

static void describe(struct header *header)
{
    static const char *const jobs[] = {"PMIX_NAMESPACE", "SLURM_JOB_ID", "PMI_KVSNAME", "PBS_JOBID", "LSB_JOBID"};
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;

    memcpy(header->magic, "MPITRAF2", 8);
    header->header_bytes = (uint32_t)recorder.header_bytes;
    header->record_bytes = sizeof(struct record);
    header->pid = (int)getpid();
    header->waits_for_all = (uint32_t)recorder.waits_for_all;
    gethostname(header->host, sizeof header->host - 1);
    REAL(MPI_Get_library_version)(library, &length);
    strncpy(header->library, library, sizeof header->library - 1);
    header->library[strcspn(header->library, "\n")] = 0;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        if (getenv(jobs[i]) && !header->job[0])
            strncpy(header->job, getenv(jobs[i]), sizeof header->job - 1);
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        ssize_t got = read(file, header->command, sizeof header->command - 1);
        for (ssize_t i = 0; i + 1 < got; i++)
            if (!header->command[i])
                header->command[i] = ' ';
        close(file);
    }
}

static uint64_t began_tick, began_ns;

__attribute__((constructor)) static void begin(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d = 0;
    if (__get_cpuid(0x80000007, &a, &b, &c, &d))
        recorder.invariant_ticks = d >> 8 & 1;
#endif
    recorder.file = -1;
    if (!getenv("MPITRAFFIC_DIRECTORY")) {
        recorder.on = -1;
        return;
    }
    began_tick = recorder_ticks();
    began_ns = nanoseconds(CLOCK_MONOTONIC);
}

static void open_file(struct header *header)
{
    const char *directory = getenv("MPITRAFFIC_DIRECTORY");
    char path[4096];

    mkdir(directory, 0777);
    snprintf(path, sizeof path, "%s/rank-%06d-%.100s-%d.mpitraffic", directory, header->rank, header->host, header->pid);
    recorder.file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (recorder.file < 0) {
        say(path, strerror(errno));
        return;
    }
    struct header *mapped = map(recorder.header_bytes);
    if (!mapped) {
        unlink(path);
        return;
    }
    memcpy(mapped, header, sizeof *header);
    recorder.header = mapped;
}

static struct slot *add_slot(MPI_Group group, int me, int inter, int only_one);

/* Return whether the program's handles are those of the header with which the recorder was compiled. */
static int same_handles(const char *library)
{
    Dl_info from;
    void *init = recorder_symbol("PMPI_Init");
    int open_mpi = strstr(library, "Open MPI") != NULL;
    int standard = init && dladdr(init, &from) && from.dli_fname && strstr(from.dli_fname, "libmpi_abi");

#ifdef OPEN_MPI
    return open_mpi && !standard;
#else
    if (HANDLE(MPI_COMM_WORLD) < 0x1000) /* the ABI of the MPI standard */
        return standard;
    return !open_mpi && !standard;
#endif
}

static void start(int thread_level)
{
    struct header *header = &recorder.unsaved;
    const char *limit = getenv("MPITRAFFIC_MEGABYTES"), *events = getenv("MPITRAFFIC_EVENTS");
    const char *waits = getenv("MPITRAFFIC_BARRIER");

    pthread_mutex_lock(&recorder.lock);
    if (recorder.on) {
        pthread_mutex_unlock(&recorder.lock);
        return;
    }
    recorder.on = -1;
    pthread_mutex_unlock(&recorder.lock);
    recorder.header = header;
    recorder.process = (int)getpid();
    recorder.limit = (off_t)(limit && atof(limit) > 0 ? atof(limit) * (1 << 20) : 16 << 20);
    recorder.events = events ? atol(events) : 0;
    recorder.waits_for_all = waits && *waits && strcmp(waits, "0");
    long page = sysconf(_SC_PAGESIZE);
    recorder.header_bytes = page > HEADER_BYTES ? page : HEADER_BYTES;
    recorder.chunk_records = CHUNK_RECORDS;
    if (page > CHUNK_RECORDS * (long)sizeof(struct record))
        recorder.chunk_records = (int)(page / (long)sizeof(struct record));
    describe(header);
    if (!same_handles(header->library)) {
        say("recorder built for another MPI", header->library);
        _exit(1); /* handles differ: the program's calls cannot be passed on */
    }
    recorder.world = MPI_COMM_WORLD;
    recorder.byte = MPI_BYTE;
    REAL(MPI_Comm_rank)(recorder.world, &header->rank);
    REAL(MPI_Comm_size)(recorder.world, &header->size);
    header->thread_level = thread_level;
    header->first_tick = began_tick;
    header->first_ns = began_ns;
    header->first_epoch_ns = nanoseconds(CLOCK_REALTIME) - (nanoseconds(CLOCK_MONOTONIC) - began_ns);
    open_file(header);
    if (recorder.header == &recorder.unsaved) {
        say("no profile", "the program runs unrecorded");
        return;
    }
    header = recorder.header;
    header->last_tick = recorder_ticks();
    header->last_ns = nanoseconds(CLOCK_MONOTONIC);
    recorder.update_ticks = (uint64_t)((double)(header->last_tick - header->first_tick) /
                                       (double)(header->last_ns - header->first_ns + 1) * 1e9);
    header->started_tick = header->last_tick;
    read_usage(&header->first);
    header->last = header->first;
    pthread_key_create(&recorder.key, release);
    pthread_atfork(NULL, NULL, forked);
    recorder.named = calloc((size_t)recorder_names_count, 1);
    REAL(MPI_Comm_create_keyval)(not_copied, freed, &recorder.keyval, NULL);
    REAL(MPI_Win_create_keyval)(window_not_copied, window_freed, &recorder.window_keyval, NULL);
    REAL(MPI_Comm_group)(recorder.world, &recorder.world_group);
    struct thread *thread = this_thread();
    if (!thread || !recorder.named)
        return;
    thread->depth = 1;
    struct slot *world = add_slot(recorder.world_group, header->rank, 0, 0);
    if (world) {
        REAL(MPI_Comm_set_attr)(recorder.world, recorder.keyval, world);
        name(thread, NAMES_COMMUNICATOR, world->id, "MPI_COMM_WORLD");
    }
    thread->depth = 0;
    recorder.next_update = recorder_ticks() + recorder.update_ticks / 4;
    recorder.on = world ? 1 : -1;
}

static void stop(void)
{
    if (recorder.on != 1)
        return;
    update();
    recorder.header->finalized = 1;
    recorder.on = -1;
}

EXPORTED int MPI_Init(int *argc, char ***argv)
{
    int result = REAL(MPI_Init)(argc, argv);
    if (result == MPI_SUCCESS && !recorder.on)
        start(MPI_THREAD_SINGLE);
    return result;
}

EXPORTED int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int result = REAL(MPI_Init_thread)(argc, argv, required, provided);
    if (result == MPI_SUCCESS && !recorder.on)
        start(*provided);
    return result;
}

EXPORTED int MPI_Finalize(void)
{
    stop();
    return REAL(MPI_Finalize)();
}

EXPORTED int MPI_Abort(MPI_Comm comm, int code)
{
    if (recorder.on == 1)
        update();
    return REAL(MPI_Abort)(comm, code);
}

/* Calls */

static __attribute__((noinline)) struct thread *enter_first(void)
{
    int initialized = 0, level = MPI_THREAD_SINGLE;

    if (recorder.on < 0)
        return NULL;
    if (!recorder.on) {
        /* Fortran programs initialize some MPI libraries without the C function. */
        if (REAL(MPI_Initialized)(&initialized) != MPI_SUCCESS || !initialized)
            return NULL;
        REAL(MPI_Query_thread)(&level);
        start(level);
        if (recorder.on != 1)
            return NULL;
    }
    return own ? own : this_thread();
}

int recorder_enter(struct call *call)
{
    struct thread *thread = own;

    if (UNLIKELY(recorder.on != 1 || !thread) && !(thread = enter_first()))
        return 0;
    if (thread->depth || recorder.paused)
        return 0;
    thread->depth = 1;
    call->thread = thread;
    call->waited = 0;
    return 1;
}

void recorder_leave(struct call *call, int id, const struct slot *slot, int64_t bytes)
{
    struct thread *thread = call->thread;
    uint64_t took = call->end - call->begin;
    int class = bytes > 0 ? 64 - __builtin_clzll((uint64_t)bytes) : 0;

    if (UNLIKELY(!recorder.named[id])) {
        recorder.named[id] = 1;
        name(thread, NAMES_CALL, id, recorder_names[id]);
    }
    thread->mpi += took + call->waited;
    struct record *record = find(thread, CALL, id, slot ? slot->id : NO_COMMUNICATOR, class, thread->phase);
    if (record) {
        record->v[0]++;
        record->v[1] += (uint64_t)bytes;
        record->v[2] += took + call->waited;
        if (took < record->v[3])
            record->v[3] = took;
        record->v[4] += call->waited;
    }
    if (UNLIKELY(recorder.events > 0)) {
        if (__atomic_sub_fetch(&recorder.events, 1, __ATOMIC_RELAXED) >= 0 && (record = append(thread))) {
            record->a = id;
            record->b = slot ? slot->id : NO_COMMUNICATOR;
            record->phase = thread->phase;
            record->v[0] = call->begin - call->waited;
            record->v[1] = took + call->waited;
            record->v[2] = (uint64_t)bytes;
            record->kind = EVENT;
        }
        if (recorder.events <= 0)
            recorder.header->lost_events = 1;
    }
    if (UNLIKELY(call->end >= recorder.next_update))
        update();
    thread->depth = 0;
}

int recorder_waits_for_all(void)
{
    return recorder.waits_for_all;
}

void recorder_wait_for_all(struct call *call, MPI_Comm comm)
{
    uint64_t before = recorder_ticks();

    REAL(MPI_Barrier)(comm);
    call->waited = recorder_ticks() - before;
}

int64_t recorder_size(int64_t count, MPI_Datatype type)
{
    int size = 0;

    REAL(MPI_Type_size)(type, &size);
    if (UNLIKELY(size < 0)) {
        MPI_Count large = 0;
        REAL(MPI_Type_size_x)(type, &large);
        return count * (int64_t)large;
    }
    return count * size;
}

/* Communicators */

static void write_members(struct thread *thread, const struct slot *slot)
{
    struct record *record = NULL;
    int runs = 0, at = 0;

    while (at < slot->size) {
        int stride = at + 1 < slot->size ? slot->world[at + 1] - slot->world[at] : 1, length = 1;
        while (at + length < slot->size && slot->world[at + length] - slot->world[at + length - 1] == stride)
            length++;
        if (runs % 3 == 0) {
            if (!(record = append(thread)))
                return;
            record->b = slot->id;
            record->c = runs / 3;
            record->kind = MEMBERS;
        }
        int32_t run[3] = {slot->world[at], length, stride};
        memcpy((char *)record->v + runs % 3 * sizeof run, run, sizeof run);
        runs++;
        at += length;
    }
}

/* Return the slot of a group: the first free one of the same members, or a new one. Members create and free
 * communicators in the same order, hence the same ordinal is the same communicator on each of them. */
static struct slot *add_slot(MPI_Group group, int me, int inter, int only_one)
{
    struct thread *thread = own;
    int size = 0, *ranks, *world, identity = !inter;
    uint64_t hash = 0xcbf29ce484222325u;

    REAL(MPI_Group_size)(group, &size);
    ranks = malloc(sizeof *ranks * (size_t)(size ? size : 1));
    world = malloc(sizeof *world * (size_t)(size ? size : 1));
    if (!ranks || !world) {
        free(ranks), free(world);
        return NULL;
    }
    for (int i = 0; i < size; i++)
        ranks[i] = i;
    REAL(MPI_Group_translate_ranks)(group, size, ranks, recorder.world_group, world);
    free(ranks);
    for (int i = 0; i < size; i++) {
        if (world[i] == MPI_UNDEFINED)
            world[i] = NO_PEER;
        identity = identity && world[i] == i;
        hash = (hash ^ (uint32_t)world[i]) * 0x100000001b3u;
    }
    if (inter)
        hash ^= 0x5bd1e995u;
    pthread_mutex_lock(&recorder.lock);
    int ordinal = 0;
    struct slot *slot = NULL;
    for (int i = 0; i < recorder.slots_count && !slot; i++) {
        struct slot *other = recorder.slots[i];
        if (other->hash != hash || other->size != size || other->inter != inter)
            continue;
        if (only_one || !__atomic_load_n(&other->alive, __ATOMIC_ACQUIRE))
            slot = other;
        ordinal++;
    }
    if (slot) {
        slot->alive = 1;
        slot->neighbours_known = 0;
        pthread_mutex_unlock(&recorder.lock);
        free(world);
        return slot;
    }
    if (recorder.slots_count == MOST_SLOTS || !(slot = calloc(1, sizeof *slot))) {
        recorder.header->lost_communicators++;
        pthread_mutex_unlock(&recorder.lock);
        free(world);
        return NULL;
    }
    *slot = (struct slot){.id = recorder.slots_count, .size = size, .me = me, .inter = inter, .alive = 1,
                          .ordinal = ordinal, .hash = hash, .world = world};
    recorder.slots[recorder.slots_count++] = slot;
    pthread_mutex_unlock(&recorder.lock);
    struct record *record = append(thread);
    if (record) {
        record->a = ordinal;
        record->b = slot->id;
        record->c = size;
        record->phase = (identity && size == recorder.header->size ? 1 : 0) | (inter ? 2 : 0);
        record->v[0] = hash;
        record->v[1] = (uint64_t)me;
        record->kind = COMMUNICATOR;
        if (!(record->phase & 1))
            write_members(thread, slot);
    }
    return slot;
}

static struct slot *register_communicator(MPI_Comm comm)
{
    MPI_Group group;
    int inter = 0, me = 0;

    if (REAL(MPI_Comm_test_inter)(comm, &inter) != MPI_SUCCESS)
        return NULL;
    REAL(MPI_Comm_rank)(comm, &me);
    if (inter)
        REAL(MPI_Comm_remote_group)(comm, &group);
    else
        REAL(MPI_Comm_group)(comm, &group);
    struct slot *slot = add_slot(group, me, inter, 0);
    REAL(MPI_Group_free)(&group);
    if (slot)
        REAL(MPI_Comm_set_attr)(comm, recorder.keyval, slot);
    return slot;
}

struct slot *recorder_slot(struct call *call, MPI_Comm comm)
{
    struct thread *thread = call->thread;
    unsigned at = (unsigned)((HANDLE(comm) >> 4 ^ HANDLE(comm)) * 2654435761u >> 16) % CACHED;
    uint32_t generation = __atomic_load_n(&recorder.generation, __ATOMIC_ACQUIRE);
    struct slot *slot = NULL;
    int found = 0;

    if (thread->cache[at].comm == comm && thread->cache[at].slot && thread->cache[at].generation == generation)
        return thread->cache[at].slot;
    if (REAL(MPI_Comm_get_attr)(comm, recorder.keyval, (void *)&slot, &found) != MPI_SUCCESS)
        return NULL;
    if (!found && !(slot = register_communicator(comm)))
        return NULL;
    thread->cache[at].comm = comm;
    thread->cache[at].slot = slot;
    thread->cache[at].generation = generation;
    return slot;
}

void recorder_created(struct call *call, MPI_Comm comm)
{
    if (comm != MPI_COMM_NULL)
        recorder_slot(call, comm);
}

struct slot *recorder_window(MPI_Win win)
{
    struct slot *slot = NULL;
    int found = 0, me = 0;
    MPI_Group group;

    REAL(MPI_Win_get_attr)(win, recorder.window_keyval, (void *)&slot, &found);
    if (found)
        return slot;
    if (REAL(MPI_Win_get_group)(win, &group) != MPI_SUCCESS)
        return NULL;
    REAL(MPI_Group_rank)(group, &me);
    slot = add_slot(group, me, 0, 1);
    REAL(MPI_Group_free)(&group);
    if (slot)
        REAL(MPI_Win_set_attr)(win, recorder.window_keyval, slot);
    return slot;
}

EXPORTED int MPI_Comm_set_name(MPI_Comm comm, const char *text)
{
    struct call call;
    int result = REAL(MPI_Comm_set_name)(comm, text);

    if (result == MPI_SUCCESS && recorder_enter(&call)) {
        struct slot *slot = recorder_slot(&call, comm);
        if (slot)
            name(call.thread, NAMES_COMMUNICATOR, slot->id, text);
        call.thread->depth = 0;
    }
    return result;
}

/* Traffic */

static void emit(struct call *call, int kind, int channel, struct slot *slot, int peer, int64_t bytes)
{
    struct thread *thread = call->thread;

    if (UNLIKELY(thread->capturing)) {
        if (thread->captured_count == thread->captured_capacity) {
            int capacity = thread->captured_capacity ? thread->captured_capacity * 2 : 8;
            struct operation *more = realloc(thread->captured, sizeof *more * (size_t)capacity);
            if (!more)
                return;
            thread->captured = more;
            thread->captured_capacity = capacity;
        }
        thread->captured[thread->captured_count++] =
            (struct operation){.kind = kind, .channel = channel, .peer = peer, .slot = slot, .bytes = bytes};
        return;
    }
    struct record *record = find(thread, (uint32_t)kind, channel, slot->id, peer, 0);
    if (record) {
        record->v[0]++;
        record->v[1] += (uint64_t)bytes;
    }
}

void traffic_pair(struct call *call, int channel, struct slot *slot, int peer, int64_t bytes)
{
    if (slot && peer >= 0 && peer < slot->size)
        emit(call, PAIR, channel, slot, slot->world[peer], bytes);
}

void traffic_each(struct call *call, struct slot *slot, int64_t bytes)
{
    if (slot)
        emit(call, EACH, COLLECTIVE, slot, NO_PEER, bytes);
}

void traffic_shared(struct call *call, struct slot *slot, int64_t bytes)
{
    if (slot)
        emit(call, slot->inter ? EACH : SHARED, COLLECTIVE, slot, NO_PEER, bytes);
}

int recorder_is_root(const struct slot *slot, int root)
{
    return slot && (slot->inter ? root == MPI_ROOT : root == slot->me);
}

void traffic_from_root(struct call *call, struct slot *slot, int root, int64_t bytes)
{
    if (recorder_is_root(slot, root))
        traffic_each(call, slot, bytes);
}

void traffic_to_root(struct call *call, struct slot *slot, int root, int64_t bytes)
{
    if (slot && (slot->inter || root != slot->me))
        traffic_pair(call, COLLECTIVE, slot, root, bytes);
}

void traffic_next(struct call *call, struct slot *slot, int64_t bytes)
{
    if (slot)
        traffic_pair(call, COLLECTIVE, slot, slot->me + 1, bytes);
}

int recorder_neighbours(struct slot *slot, MPI_Comm comm)
{
    int topology = MPI_UNDEFINED, in = 0, out = 0, weighted;

    if (!slot)
        return 0;
    if (slot->neighbours_known)
        return slot->out_degree;
    free(slot->out);
    slot->out = NULL;
    slot->out_degree = 0;
    slot->neighbours_known = 1;
    REAL(MPI_Topo_test)(comm, &topology);
    if (topology == MPI_CART) {
        int dimensions = 0;
        REAL(MPI_Cartdim_get)(comm, &dimensions);
        slot->out = malloc(sizeof *slot->out * (size_t)(2 * dimensions + 1));
        for (int i = 0; slot->out && i < dimensions; i++)
            REAL(MPI_Cart_shift)(comm, i, 1, &slot->out[2 * i], &slot->out[2 * i + 1]);
        slot->out_degree = slot->out ? 2 * dimensions : 0;
    } else if (topology == MPI_GRAPH) {
        REAL(MPI_Graph_neighbors_count)(comm, slot->me, &out);
        slot->out = malloc(sizeof *slot->out * (size_t)(out + 1));
        if (slot->out)
            REAL(MPI_Graph_neighbors)(comm, slot->me, out, slot->out);
        slot->out_degree = slot->out ? out : 0;
    } else if (topology == MPI_DIST_GRAPH) {
        REAL(MPI_Dist_graph_neighbors_count)(comm, &in, &out, &weighted);
        int *unused = malloc(sizeof *unused * (size_t)(2 * in + out + 1));
        slot->out = malloc(sizeof *slot->out * (size_t)(out + 1));
        if (unused && slot->out)
            REAL(MPI_Dist_graph_neighbors)(comm, in, unused, unused + in, out, slot->out, unused + 2 * in);
        slot->out_degree = unused && slot->out ? out : 0;
        free(unused);
    }
    return slot->out_degree;
}

/* Requests */

static struct {
    pthread_mutex_t lock;
    struct pending *buckets[BUCKETS];
    struct pending *free;
    volatile long count;
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct pending **bucket(uint64_t handle)
{
    return &table.buckets[(handle * 0x9e3779b97f4a7c15u) >> 52];
}

static struct pending *insert(struct slot *slot, uint64_t handle)
{
    struct pending *pending;

    pthread_mutex_lock(&table.lock);
    if (table.count >= MOST_PENDING)
        pending = NULL;
    else if ((pending = table.free))
        table.free = pending->next;
    else
        pending = malloc(sizeof *pending);
    if (pending) {
        struct pending **head = bucket(handle);
        *pending = (struct pending){.handle = handle, .slot = slot, .next = *head};
        *head = pending;
        table.count++;
    } else
        recorder.header->lost_requests++;
    pthread_mutex_unlock(&table.lock);
    return pending;
}

void recorder_track(struct slot *slot, uint64_t handle, int is_message)
{
    struct pending *pending = slot ? insert(slot, handle) : NULL;

    if (pending) {
        pending->receives = 1;
        pending->is_message = is_message;
    }
}

int recorder_tracks(void)
{
    return table.count > 0;
}

struct pending *recorder_pending(uint64_t handle, int is_message)
{
    struct pending *pending;

    pthread_mutex_lock(&table.lock);
    pending = *bucket(handle);
    while (pending && (pending->handle != handle || pending->is_message != is_message))
        pending = pending->next;
    pthread_mutex_unlock(&table.lock);
    return pending;
}

void recorder_forget(struct pending *pending)
{
    pthread_mutex_lock(&table.lock);
    struct pending **at = bucket(pending->handle);
    while (*at && *at != pending)
        at = &(*at)->next;
    if (*at) { /* else it was forgotten: the program passed the request twice */
        *at = pending->next;
        free(pending->operations);
        pending->next = table.free;
        table.free = pending;
        table.count--;
    }
    pthread_mutex_unlock(&table.lock);
}

int64_t recorder_received(struct call *call, struct slot *slot, MPI_Status *status)
{
    MPI_Count bytes = 0;
    int cancelled = 0;

    if (!slot || status->MPI_SOURCE < 0 || status->MPI_SOURCE >= slot->size)
        return 0;
    REAL(MPI_Test_cancelled)(status, &cancelled);
    if (cancelled || REAL(MPI_Get_elements_x)(status, recorder.byte, &bytes) != MPI_SUCCESS || bytes < 0)
        return 0;
    traffic_pair(call, POINT_TO_POINT | RECEIVED, slot, status->MPI_SOURCE, (int64_t)bytes);
    return (int64_t)bytes;
}

int64_t recorder_completed(struct call *call, struct pending *pending, MPI_Status *status)
{
    int64_t bytes = pending->receives ? recorder_received(call, pending->slot, status) : 0;

    if (!pending->persistent)
        recorder_forget(pending);
    return bytes;
}

void recorder_capture(struct call *call)
{
    call->thread->capturing = 1;
    call->thread->captured_count = 0;
}

void recorder_captured(struct call *call, struct slot *slot, uint64_t handle, int receives)
{
    struct thread *thread = call->thread;
    size_t bytes = sizeof *thread->captured * (size_t)thread->captured_count;
    struct pending *pending = insert(slot, handle);

    thread->capturing = 0;
    if (!pending)
        return;
    pending->persistent = 1;
    pending->receives = receives;
    if (bytes && (pending->operations = malloc(bytes))) {
        memcpy(pending->operations, thread->captured, bytes);
        pending->operations_count = thread->captured_count;
    }
}

int64_t recorder_started(struct call *call, uint64_t handle, struct slot **slot)
{
    struct pending *pending = recorder_pending(handle, 0);
    int64_t bytes = 0;

    if (!pending)
        return 0;
    *slot = pending->slot;
    for (int i = 0; i < pending->operations_count; i++) {
        struct operation *each = &pending->operations[i];
        emit(call, each->kind, each->channel, each->slot, each->peer, each->bytes);
        bytes += each->bytes;
    }
    return bytes;
}

/* Phases */

static uint32_t phase_number(struct thread *thread, const char *text)
{
    int number;

    pthread_mutex_lock(&recorder.lock);
    for (number = 0; number < recorder.phases_count; number++)
        if (!strncmp(recorder.phases[number], text, NAME_BYTES - 1))
            break;
    int new = number == recorder.phases_count && number < MOST_PHASES;
    if (new)
        strncpy(recorder.phases[recorder.phases_count++], text, NAME_BYTES - 1);
    pthread_mutex_unlock(&recorder.lock);
    if (new)
        name(thread, NAMES_PHASE, number + 1, text);
    return number < MOST_PHASES ? (uint32_t)number + 1 : 0;
}

EXPORTED void mpitraffic_phase_begin(const char *text)
{
    struct call call;

    if (!recorder_enter(&call))
        return;
    struct thread *thread = call.thread;
    if (thread->nested < DEPTH) {
        thread->outer[thread->nested] = thread->phase;
        thread->phase = phase_number(thread, text);
        thread->in_mpi[thread->nested] = thread->mpi;
        thread->cpu[thread->nested] = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
        thread->entered[thread->nested] = recorder_ticks();
    }
    thread->nested++;
    thread->depth = 0;
}

EXPORTED void mpitraffic_phase_end(void)
{
    struct call call;

    if (!recorder_enter(&call))
        return;
    struct thread *thread = call.thread;
    if (thread->nested > 0 && --thread->nested < DEPTH) {
        struct record *record = find(thread, PHASE, 0, (int)thread->outer[thread->nested], 0, thread->phase);
        if (record) {
            record->v[0]++;
            record->v[1] += nanoseconds(CLOCK_THREAD_CPUTIME_ID) - thread->cpu[thread->nested];
            record->v[2] += recorder_ticks() - thread->entered[thread->nested];
            record->v[4] += thread->mpi - thread->in_mpi[thread->nested];
        }
        thread->phase = thread->outer[thread->nested];
    }
    thread->depth = 0;
}

EXPORTED int MPI_Pcontrol(const int level, ...)
{
    char text[NAME_BYTES];

    if (level == 0 || level == 1)
        recorder.paused = !level;
    else if (level == 2 && recorder.on == 1)
        update();
    else if (level > 2) {
        snprintf(text, sizeof text, "%d", level);
        mpitraffic_phase_begin(text);
    } else
        mpitraffic_phase_end();
    return MPI_SUCCESS;
}
