/* The entry point of csalock in a static build with glibc on x86-64: glibc's start, but without CPUID.
 *
 * glibc executes CPUID 43 times before `main`, to choose the fastest of its string functions. In a virtual machine the
 * hypervisor answers each question: 4 us each, where `flock F true` took 1.4 ms. csalock copies little, so the functions
 * that every x86-64 processor can execute serve it as well; glibc chooses them if it knows nothing about the processor.
 *
 * The steps are those of `__libc_start_main` in csu/libc-start.c, by glibc's own functions and in its order. Left out is
 * what csalock does not use: tunables and the variables MALLOC_*, `dlopen`, `iconv` and the table of the vDSO
 * (`_dl_non_dynamic_init`), `dl_iterate_phdr`, `wordexp`, functions that C libraries register for the end, and
 * `pthread_exit` from the first thread. glibc's own start does all of it for versions that were not compared and tried,
 * for a program with the rights of another user, if GLIBC_TUNABLES is set, and if the kernel does not tell how large the
 * frame of a signal is (Linux before 5.14): glibc then asks the processor.
 *
 * String functions may be called only after their relocation. build/main.rs therefore compiles this file so that the
 * compiler does not turn a loop into such a call. There is no stack canary before the program sets it. */

#include <features.h>

#if defined __x86_64__ && defined __GLIBC__ && __GLIBC__ == 2 && __GLIBC_MINOR__ >= 36 && __GLIBC_MINOR__ <= 41

#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

typedef void initializer(int, char **, char **);

/* What ld defines: relocations whose values functions return, and the initializers of the program. */
extern const ElfW(Rela) __rela_iplt_start[], __rela_iplt_end[];
extern initializer *__preinit_array_start[], *__preinit_array_end[], *__init_array_start[], *__init_array_end[];
void _init(void);

/* What libc.a defines for its own start. */
extern char **__environ;
extern void *__libc_stack_end, *_dl_random;
void _dl_aux_init(ElfW(auxv_t) *);
void __libc_setup_tls(void);
void __libc_early_init(_Bool);
void __init_misc(int, char **, char **);
/* Access to the stacks of threads; executable until a program's headers say something else. */
extern ElfW(Word) _dl_stack_flags;

#ifdef __has_attribute
#if __has_attribute(no_stack_protector)
#define WITHOUT_CANARY __attribute__((no_stack_protector))
#endif
#endif
#ifndef WITHOUT_CANARY
#define WITHOUT_CANARY
#endif

/* Sizes in bytes from which copies bypass the cache. Without CPUID they would be 0. Older versions lack the third. */
extern long __x86_shared_non_temporal_threshold, __x86_rep_movsb_stop_threshold;
extern long __x86_memset_non_temporal_threshold __attribute__((weak));

int main(int, char **, char **);

/* The written data of a start, which build/hot.ld puts together. Without that script the size is 0. */
extern char csalock_written[] __attribute__((weak)), csalock_written_end[] __attribute__((weak));

/* Bytes of stack and heap that a run or another short command uses. The heap of src/heap.rs follows the written data. */
enum { PAGE = 4096, STACK = 11 * PAGE, HEAP = 8 * PAGE };

/* The variables of the first thread, for which glibc would ask the kernel with brk(2). */
static char thread_variables[PAGE] __attribute__((aligned(64)));

/* The linker makes glibc's `__libc_setup_tls`, which calls `_dl_early_allocate` once, call this (ld(1), --wrap). */
void *__wrap__dl_early_allocate(size_t size) {
    void *more = size <= sizeof thread_variables ? thread_variables : sbrk(size);
    return more == (void *)-1 ? NULL : more;
}

/* Makes the kernel provide the pages of this memory at once: a fault that provides one page costs several times as much,
 * and a start writes to some twenty pages. Failures cost only speed. */
WITHOUT_CANARY static void populate(char *begin, uintptr_t size) {
    uintptr_t first = (uintptr_t)begin / PAGE * PAGE, result = __NR_madvise;
    __asm__ volatile("syscall"
                     : "+a"(result)
                     : "D"(first), "S"(((uintptr_t)begin + size - first + PAGE - 1) / PAGE * PAGE), "d"(MADV_POPULATE_WRITE)
                     : "rcx", "r11", "memory");
}

WITHOUT_CANARY static bool begins_with(const char *text, const char *beginning) {
    while (*beginning && *text == *beginning) {
        text++;
        beginning++;
    }
    return !*beginning;
}

/* Runs the program, or returns if glibc's own start must do that. The kernel put `stack` there (System V ABI for
 * x86-64, 3.4.1): the number of arguments, the arguments, the environment and the auxiliary vector. */
__attribute__((used)) WITHOUT_CANARY void csalock_begin(uintptr_t *stack) {
    populate((char *)stack - STACK, STACK);
    populate(csalock_written, csalock_written_end - csalock_written + HEAP);
    int count = (int)*stack;
    char **arguments = (char **)(stack + 1), **environment = arguments + count + 1, **end = environment;
    for (; *end; end++)
        if (begins_with(*end, "GLIBC_TUNABLES="))
            return;
    ElfW(auxv_t) *auxiliary = (ElfW(auxv_t) *)(end + 1);
    bool has_headers = false, has_random = false, has_frame_size = false;
    for (ElfW(auxv_t) *entry = auxiliary; entry->a_type != AT_NULL; entry++) {
        if (entry->a_type == AT_SECURE && entry->a_un.a_val)
            return;
        has_headers |= entry->a_type == AT_PHDR && entry->a_un.a_val;
        has_random |= entry->a_type == AT_RANDOM && entry->a_un.a_val;
        has_frame_size |= entry->a_type == AT_MINSIGSTKSZ && entry->a_un.a_val;
    }
    if (!has_headers || !has_random || !has_frame_size)
        return;

    __environ = environment;
    __libc_stack_end = stack;
    _dl_stack_flags = PF_R | PF_W;
    _dl_aux_init(auxiliary);

    /* Three quarters of glibc's default for the size of the cache. */
    __x86_shared_non_temporal_threshold = __x86_rep_movsb_stop_threshold = 1024 * 1024 / 4 * 3;
    if (&__x86_memset_non_temporal_threshold)
        __x86_memset_non_temporal_threshold = __x86_shared_non_temporal_threshold;
    for (const ElfW(Rela) *each = __rela_iplt_start; each < __rela_iplt_end; each++)
        *(ElfW(Addr) *)each->r_offset = ((ElfW(Addr)(*)(void))each->r_addend)();

    __libc_setup_tls();
    /* The canary of functions with arrays, whose first byte is 0 so that no string contains it, and the secret with which
     * glibc hides addresses. */
    const uintptr_t *random = _dl_random;
    __asm__ volatile("mov %0, %%fs:0x28\n\tmov %1, %%fs:0x30" : : "r"(random[0] & ~(uintptr_t)0xff), "r"(random[1]));

    __libc_early_init(true);
    __init_misc(count, arguments, environment);
    for (initializer **each = __preinit_array_start; each < __preinit_array_end; each++)
        (*each)(count, arguments, environment);
    _init();
    for (initializer **each = __init_array_start; each < __init_array_end; each++)
        (*each)(count, arguments, environment);
    exit(main(count, arguments, environment));
}

/* The registers have the values with which the kernel starts a program when glibc's start takes over. */
__asm__(".globl csalock_entry\n"
        "csalock_entry:\n\t"
        "xor %ebp, %ebp\n\t"
        "mov %rsp, %rbx\n\t"
        "and $-16, %rsp\n\t"
        "mov %rbx, %rdi\n\t"
        "call csalock_begin\n\t"
        "mov %rbx, %rsp\n\t"
        "xor %edx, %edx\n\t"
        "jmp _start\n");

#else

__asm__(".globl csalock_entry\n"
        "csalock_entry:\n\t"
        "jmp _start\n");

#endif
