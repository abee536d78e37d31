/* Delays each write to a file below the folder SLOW_FOLDER, and each sync of one. The file SLOW_WRITES has three numbers of 64 bits: how
   many seconds each takes, which may change while the program runs, and how many writes and how many syncs were delayed so far. Loaded by
   LD_PRELOAD. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { SECONDS, WRITES, SYNCS, NUMBERS };

static uint64_t *numbers;
static char folder[4096];

/* Before the program shuts itself in, after which it could open no file of a test's. */
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SLOW_WRITES"), *slow = getenv("SLOW_FOLDER");
    int file = path && slow ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    snprintf(folder, sizeof folder, "%s/", slow);
    void *mapped = mmap(NULL, NUMBERS * sizeof *numbers, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED)
        numbers = mapped;
    close(file);
}

static void delay(int file, int kind) {
    uint64_t seconds = numbers ? __atomic_load_n(&numbers[SECONDS], __ATOMIC_RELAXED) : 0;
    char link[64], path[4096];
    if (!seconds)
        return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return;
    path[length] = 0;
    if (strncmp(path, folder, strlen(folder)))
        return;
    __atomic_fetch_add(&numbers[kind], 1, __ATOMIC_RELAXED);
    struct timespec time = {.tv_sec = (time_t)seconds};
    while (nanosleep(&time, &time))
        ;
}

ssize_t write(int file, const void *bytes, size_t length) {
    delay(file, WRITES);
    return syscall(SYS_write, file, bytes, length);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    delay(file, WRITES);
    return syscall(SYS_writev, file, parts, count);
}

ssize_t pwrite64(int file, const void *bytes, size_t length, off64_t at) {
    delay(file, WRITES);
    return syscall(SYS_pwrite64, file, bytes, length, at);
}

int fsync(int file) {
    delay(file, SYNCS);
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    delay(file, SYNCS);
    return (int)syscall(SYS_fdatasync, file);
}
