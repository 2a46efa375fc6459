"""A wall clock that a test can move under a running program: a small library that is loaded before all others.

It moves only Python's clock (`time.time`, `datetime.now`). Waits inside other libraries use the kernel's clock, which does
not move.
"""

import os
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <stdlib.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void open_offset(void) {
    const char *path = getenv("CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) offset = found;
    close(file);
}

static int asked_by_python(void *caller) {
    Dl_info info;
    if (!dladdr(caller, &info) || !info.dli_fname) return 0;
    const char *name = strrchr(info.dli_fname, '/');
    name = name ? name + 1 : info.dli_fname;
    return !strncmp(name, "python", 6) || !strncmp(name, "libpython", 9);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real ? real(clock, now) : (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock == CLOCK_REALTIME && offset && *offset && asked_by_python(__builtin_return_address(0)))
        now->tv_sec += *offset;
    return failed;
}
"""


class Clock:
    """The clock of the programs that are started with `environment`."""

    def __init__(self, folder: Path) -> None:
        """Build the library in a folder. Raise `OSError` without a compiler."""
        compiler = shutil.which("cc")
        if compiler is None:
            raise OSError("no C compiler (cc)")
        source, library = folder / "clock.c", folder / "clock.so"
        source.write_text(SOURCE, encoding="ascii")
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
        self._offset = folder / "offset"
        self.set(0)
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(self._offset)}

    def set(self, seconds: int) -> None:
        """Move the clock so many seconds away from the true time."""
        descriptor = os.open(self._offset, os.O_WRONLY | os.O_CREAT)
        try:
            os.pwrite(descriptor, struct.pack("q", seconds), 0)
        finally:
            os.close(descriptor)
