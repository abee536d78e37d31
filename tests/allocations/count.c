/* Counts what a program allocates, in the file ALLOCATION_COUNTS: two numbers of 64 bits, the calls of the allocator and the bytes that
   they asked for. Loaded by LD_PRELOAD. The memory itself comes from the C library as ever, so nothing else changes. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static uint64_t *counts;

/* Before the program shuts itself in, after which it could open no file of a test's. */
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("ALLOCATION_COUNTS");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, 2 * sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED)
        __atomic_store_n(&counts, (uint64_t *)mapped, __ATOMIC_RELEASE);
    close(file);
}

static void count(size_t bytes) {
    uint64_t *to = __atomic_load_n(&counts, __ATOMIC_ACQUIRE);
    if (!to)
        return;
    __atomic_fetch_add(&to[0], 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&to[1], (uint64_t)bytes, __ATOMIC_RELAXED);
}

void *malloc(size_t size) {
    count(size);
    return __libc_malloc(size);
}

void *calloc(size_t elements, size_t size) {
    /* What overflows is refused by the C library. */
    count(elements * size);
    return __libc_calloc(elements, size);
}

void *realloc(void *memory, size_t size) {
    count(size);
    return __libc_realloc(memory, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    count(size);
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size) {
    count(size);
    void *made = __libc_memalign(alignment, size);
    if (!made)
        return ENOMEM;
    *memory = made;
    return 0;
}
